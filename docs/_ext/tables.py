"""Sphinx directives that make tables from the sources.

A table that cannot be made, or a mapping with a hole, ends the build.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cpp
import mapping
import sources
import tiers

Rows = list[list[str]]
_PROPERTIES = "_DeviceProperties."


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _codes(texts: Sequence[str]) -> str:
    """Names as code; a step that is not the name of a function stays plain."""
    return ", ".join(text if " " in text else f"`{text}`" for text in texts)


def _errors() -> tuple[list[str], Rows]:
    rows = [
        [str(one.number), _code(one.name), one.text, _code(one.exception)]
        for one in sources.error_codes()
    ]
    for row in rows:
        if row[1] == "`orErrorLaunchFailure`":
            row[3] += ", or the type that the kernel threw"
    return ["number", "name", "text", "in Python"], rows


def _kernel_exceptions() -> tuple[list[str], Rows]:
    return ["a kernel throws", "Python raises, at the next synchronizing call"], [
        [cpp if " " in cpp else _code(cpp), _code(python)]
        for cpp, python in sources.kernel_exceptions()
    ]


def _bindings() -> tuple[list[str], Rows]:
    rows = []
    for name, entry in mapping.checked_table()["bindings"].items():
        if not name.startswith(_PROPERTIES):
            users, functions, reached = mapping.cells(entry)
            rows.append(
                [
                    users,
                    _code(name),
                    _codes(mapping.names(functions)),
                    _codes(mapping.names(reached)),
                ]
            )
    return ["Python", "binding", "C++ function", "runtime"], rows


def _properties() -> tuple[list[str], Rows]:
    return ["Python", "C++ field or function"], [
        [_code(name.removeprefix(_PROPERTIES)), _codes(mapping.names(mapping.cells(entry)[1]))]
        for name, entry in mapping.checked_table()["bindings"].items()
        if name.startswith(_PROPERTIES)
    ]


def _interfaces(class_name: str) -> tuple[list[str], Rows]:
    rows = []
    for name, entry in mapping.checked_table()["interfaces"][class_name].items():
        users, reached = mapping.cells(entry)
        rows.append([_code(name), users, _codes(mapping.names(reached))])
    return ["function", "reached from", "runtime"], rows


def _python_only() -> tuple[list[str], Rows]:
    table = mapping.checked_table()
    rows = [[f"`torch.openreg.{n}`", what] for n, what in table["python_only"].items()]
    rows += [
        [f"`torch.openreg.{n}`", f"by `torch.openreg.{other}`"]
        for n, other in table["by_another"].items()
    ]
    return ["Python", "how"], sorted(rows)


def _runtime() -> tuple[list[str], Rows]:
    return ["function", "header", "called in"], [
        [_code(one.name), _code(one.header), _codes(one.users) or "not by the backend"]
        for one in cpp.runtime_api()
    ]


def _operator_tiers() -> tuple[list[str], Rows]:
    counts = tiers.counts()
    rows = [[tier, str(counts[tier]), what] for tier, what in tiers.TIERS.items()]
    return ["tier", "operators", "how they run"], [
        *rows,
        ["all", str(counts.total()), "each overload in `aten` counted by itself"],
    ]


_TABLES: dict[str, Callable[..., tuple[list[str], Rows]]] = {
    "bindings": _bindings,
    "errors": _errors,
    "interfaces": _interfaces,
    "kernel-exceptions": _kernel_exceptions,
    "operator-tiers": _operator_tiers,
    "properties": _properties,
    "python-only": _python_only,
    "runtime": _runtime,
}


class SourceTable(SphinxDirective):
    """``{source-table} NAME [ARGUMENT]``: a table made from the sources."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Makes the table."""
        name, *rest = self.arguments
        if name not in _TABLES:
            raise self.error(f"source-table: expected one of {', '.join(_TABLES)}, got {name}")
        try:
            head, rows = _TABLES[name](*rest)
        except sources.SourceError as error:
            raise ExtensionError(f"{self.env.docname}: source-table {name}: {error}") from error
        if not rows:
            raise ExtensionError(f"{self.env.docname}: source-table {name}: it has no rows")
        # The sources are not Sphinx's to watch one by one: read the page again at each build.
        self.env.note_reread()
        return self.parse_text_to_nodes(_markdown(head, rows))


def _markdown(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _check_is_built() -> None:
    """Ends the build if tables that the library makes cannot be made."""
    missing = "" if tiers.TABLE.is_file() else f"{tiers.TABLE} is missing"
    try:
        import torch_openreg  # noqa: F401
    except Exception as error:
        # A broken installation: ``import torch`` raises, too.
        missing = f"torch_openreg cannot be imported: {error}"
    if missing:
        raise ExtensionError(
            "The documentation is made from a clone that is built and installed: pip install "
            f"--no-build-isolation -e . ({missing})"
        )


def _check(app: Sphinx) -> None:
    """Ends the build at once if a page cannot be made, whichever pages are built."""
    _check_is_built()
    try:
        mapping.checked_table()
    except sources.SourceError as error:
        raise ExtensionError(str(error)) from error


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directive."""
    app.add_directive("source-table", SourceTable)
    app.connect("builder-inited", _check)
    return {"parallel_read_safe": True}
