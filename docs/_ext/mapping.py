"""The tables of docs/mapping.toml, from Python to the runtime, and checks of their names."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from typing import Any

from cpp import bound_to, overrides, runtime_api
from package import public_names, stub_names, used_bindings
from sources import ROOT, SourceError, read

_TABLE = ROOT / "docs" / "mapping.toml"
# What the tables say in place of a function's name.
_STEPS = {"stream lookup", "the constructor"}

Table = dict[str, Any]


@cache
def table() -> Table:
    """Returns the tables as they are written."""
    return tomllib.loads(read(_TABLE))


def cells(text: str) -> list[str]:
    """Returns the cells of an entry."""
    return [cell.strip() for cell in re.split(r" \|(?= |$)", text)]


def names(cell: str) -> list[str]:
    """Returns the names in a cell of functions."""
    return [name for name in cell.split(", ") if name]


def checked_table() -> Table:
    """Returns the tables, after checking them.

    Raises:
        SourceError: The sources have names that the tables do not have, or the other way round.
    """
    if found := problems(table()):
        raise SourceError("docs/mapping.toml:\n  " + "\n  ".join(found))
    return table()


def problems(table: Table) -> list[str]:
    """Returns what is wrong with the names of tables."""
    return [
        *_differences("a binding of _C.pyi", stub_names(), table["bindings"]),
        *_differences(
            "a virtual function of csrc",
            overrides(),
            [f"{owner}::{name}" for owner, rows in table["interfaces"].items() for name in rows],
        ),
        *_unreachable_names(table),
        *_unused_bindings(table),
        *_unbound_functions(table),
        *_unknown_runtime_functions(table),
    ]


def _differences(kind: str, there: Iterable[str], listed: Iterable[str]) -> list[str]:
    there, listed = set(there), set(listed)
    return [
        *(f"{name}: {kind} that has no entry" for name in sorted(there - listed)),
        *(f"{name}: an entry that is not {kind}" for name in sorted(listed - there)),
    ]


def _unreachable_names(table: Table) -> list[str]:
    """Public names of torch.openreg from which no entry leads to the runtime."""
    entries = [*table["bindings"].values()]
    entries += [entry for rows in table["interfaces"].values() for entry in rows.values()]
    text = " ".join(cells(entry)[0] for entry in entries)
    shown = set(re.findall(r"`torch\.openreg\.(\w+)", text))
    shown |= {*table["python_only"], *table["by_another"]}
    return [
        f"torch.openreg.{name}: no entry names it" for name in public_names() if name not in shown
    ]


def _unused_bindings(table: Table) -> list[str]:
    """Functions that neither the package nor a test uses, and whose entry does not say so."""
    used = used_bindings()
    return [
        f"{name}: neither the package nor a test uses it"
        for name, entry in table["bindings"].items()
        if "." not in name
        and name not in used
        and not cells(entry)[0].startswith(("no caller", "another name"))
    ]


def _unbound_functions(table: Table) -> list[str]:
    """C++ functions that the sources of the bindings do not have where the name is bound."""
    return [
        f"{name}: its binding does not mention {function}"
        for name, entry in table["bindings"].items()
        for function in names(cells(entry)[1])
        if function not in _STEPS
        and not re.search(rf"\b{function.rpartition('::')[2]}\b", bound_to(name))
    ]


def _unknown_runtime_functions(table: Table) -> list[str]:
    known = {one.name for one in runtime_api()} | _STEPS
    entries = {**table["bindings"]}
    for owner, rows in table["interfaces"].items():
        entries |= {f"{owner}::{name}": entry for name, entry in rows.items()}
    return [
        f"{name}: the runtime does not declare {function}"
        for name, entry in entries.items()
        for function in names(cells(entry)[-1])
        if function not in known
    ]
