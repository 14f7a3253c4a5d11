"""Names in the C and C++ sources, which are read as text.

This is not a parser. It relies on the sources being formatted as clang-format leaves them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sources import ROOT, RUNTIME_HEADERS, SourceError, read

# The parts of csrc whose classes implement interfaces of torch that the tables are about.
_INTERFACE_PARTS = (
    *("core", "memory", "random", "hooks"),
    *("extras/cuda/CudaHooks.h", "extras/graph", "extras/ipc", "extras/profiler"),
)
_CLASS = re.compile(r"^ *(?:template <.*> )?(?:class|struct) (?:[A-Z_]+ )?(\w+)[^;{}()]*\{", re.M)
_OVERRIDE = re.compile(r"(?<![~\w])(\w+)\([^;{}]*?\)[^;{}()]*\boverride\b")


def without_comments(text: str) -> str:
    """Removes comments, and the contents of strings."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', '""', text, flags=re.DOTALL)


def _files(*parts: str) -> Iterable[Path]:
    for root in (ROOT / "csrc", ROOT / "include" / "torch_openreg"):
        for part in parts:
            path = root / part
            yield from [path] if path.is_file() else sorted(path.glob("*.[hc]*"))


def overrides() -> list[str]:
    """Returns the virtual functions of torch that csrc implements, as Class::function."""
    return [name for path in _files(*_INTERFACE_PARTS) for name in overrides_in(read(path))]


def overrides_in(text: str) -> list[str]:
    """Returns the virtual functions that the classes of a file implement, each once.

    A class ends where the next one begins: none has another one before its own functions. Those of
    core/Observer.h are left out, as it is not of torch.
    """
    text = without_comments(text)
    classes = list(_CLASS.finditer(text))
    ends = [*(found.start() for found in classes), len(text)][1:]
    return list(
        dict.fromkeys(
            f"{found[1]}::{name}"
            for found, end in zip(classes, ends, strict=True)
            if not re.search(r"\bObserver\b", found[0])
            for name in _OVERRIDE.findall(text, found.end(), end)
        )
    )


@cache
def bindings_code() -> str:
    """Returns the sources of the bindings."""
    return "\n".join(read(path) for path in sorted((ROOT / "csrc").glob("**/python/*.cpp")))


def bound_to(name: str) -> str:
    """Returns the text that binds a name: from the name to the next binding; "" if none does."""
    member = name.rpartition(".")[2]
    text = r"py::init\b" if member == "__init__" else rf'"{member}"'
    return "\n".join(
        re.findall(rf"{text}(.*?)(?=\.def(?:_\w+)?\(|m\.attr|\n}}|\Z)", bindings_code(), re.DOTALL)
    )


@dataclass(frozen=True)
class RuntimeFunction:
    """A function of the C API."""

    name: str
    header: str
    users: tuple[str, ...]  # files of the backend that call it


@cache
def runtime_api() -> tuple[RuntimeFunction, ...]:
    """Returns every function that the runtime's headers declare."""
    calls: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "csrc").rglob("*"), *(ROOT / "include").rglob("*")]):
        if path.suffix in (".h", ".cpp"):
            name = str(path.relative_to(ROOT))
            for function in set(re.findall(r"\b(or[A-Z]\w*)\s*\(", without_comments(read(path)))):
                calls.setdefault(function, []).append(name)
    functions = tuple(
        RuntimeFunction(name, header.name, tuple(calls.get(name, ())))
        for header in sorted(RUNTIME_HEADERS.glob("*.h"))
        for name in re.findall(r"^OPENREG_API [^;(]*?(or\w+)\(", read(header), re.MULTILINE)
    )
    if not functions:
        raise SourceError("third_party/openreg_runtime: expected functions marked OPENREG_API")
    return functions
