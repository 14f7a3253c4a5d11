"""The C++ sources, read as text: which function calls which.

This is not a parser. It relies on the sources being formatted as clang-format leaves them.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sources import ROOT, RUNTIME_HEADERS, SourceError, read

# The parts of csrc that the tables are about; operators are not listed one by one.
_BACKEND_PARTS = (
    "core",
    "memory",
    "random",
    "hooks",
    "extras/graph",
    "extras/ipc",
    "extras/profiler",
)


@dataclass(frozen=True)
class Function:
    """A C++ function: its name with that of its class, and its body."""

    name: str
    body: str

    @property
    def runtime_calls(self) -> list[str]:
        """Functions of the runtime that the body calls, in order."""
        return list(dict.fromkeys(re.findall(r"\b(or[A-Z]\w*)\s*\(", self.body)))

    @property
    def calls(self) -> list[str]:
        """Unqualified names of the free functions that the body may call."""
        return list(dict.fromkeys(re.findall(r"(?<![.>\w])(?:\w+::)*(\w+)\s*\(", self.body)))

    @property
    def method_calls(self) -> list[tuple[str, str]]:
        """Methods that the body calls on other objects: the object's last name, the method's."""
        pattern = r"(\w*)(?:\([^()]*\))?(?:\.|->)(\w+)\s*\("
        return list(dict.fromkeys(re.findall(pattern, self.body)))


_KEYWORDS = {"if", "for", "while", "switch", "catch", "return", "sizeof", "namespace"}


def _without_comments(text: str) -> str:
    """Blanks comments, macros and the contents of strings; keeps all positions."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n\"]", " ", found[0])

    pattern = r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*'
    return re.sub(pattern, blank, text, flags=re.DOTALL | re.MULTILINE)


def _closing_brace(text: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    return len(text)


def cpp_functions(path: Path) -> list[Function]:
    """Returns the functions that a C++ file defines, lambdas as part of the one around them."""
    text = _without_comments(read(path))
    classes = [
        (found.end() - 1, _closing_brace(text, found.end() - 1), found[1])
        for found in re.finditer(r"\b(?:class|struct)\s+(?:[A-Z_]+\s+)?(\w+)[^;{}()]*\{", text)
    ]
    functions = []
    end = 0
    definition = re.compile(
        r"([\w:~]+(?:<\w+>::~?\w+)?)\s*\(([^;{}]*?)\)\s*(?:const\s*)?(?:noexcept\s*)?(?:override\s*)?"
        r"(?::[^;{]*)?\{"
    )
    position = 0
    while found := definition.search(text, position):
        position = found.end()
        if found[1] in _KEYWORDS or found.start() < end:
            continue
        opening = found.end() - 1
        end = _closing_brace(text, opening)
        position = end
        owner = [name for begin, close, name in classes if begin < opening < close]
        # A method of a class template bears its name without parameters.
        name = "::".join([*owner[-1:], re.sub(r"<\w+>", "", found[1])])
        functions.append(Function(name, text[found.start(2) : end]))
    return functions


def _files_of(part: str) -> list[Path]:
    folders = (ROOT / "csrc" / part, ROOT / "include" / "torch_openreg" / part)
    return sorted(path for folder in folders for path in folder.glob("*.[hc]*"))


@cache
def backend_functions() -> dict[str, Function]:
    """Returns the functions of csrc below the operators, by name."""
    functions: dict[str, Function] = {}
    for part in _BACKEND_PARTS:
        for path in _files_of(part):
            if path.stem == "Exception":
                continue
            for function in cpp_functions(path):
                functions.setdefault(function.name, function)
    return functions


# Checks of an argument; their calls of the runtime are not listed for the function that checks.
INDEX_CHECKS = {"resolveDeviceIndex", "check_device_index", "ensureHasDevice"}

# Listed by a name that the page explains, and not by their calls.
_NAMED_STEPS = {"lookUpHandle": "stream lookup"}

# Classes whose methods are followed where they are called on an object.
_VALUE_CLASSES = (
    "OpenRegStream",
    "OpenRegEvent",
    "OpenRegGeneratorImpl",
    "DeviceCachingAllocator",
    "BlockCache",
    "StreamPool",
)


def _method(receiver: str, name: str, functions: dict[str, Function]) -> list[str]:
    """The methods that `receiver.name()` may mean, judged by the receiver's name."""
    owners = [one for one in _VALUE_CLASSES if f"{one}::{name}" in functions]
    if len(owners) > 1:
        owners = [one for one in owners if (one == "OpenRegStream") == ("tream" in receiver)]
    return [f"{one}::{name}" for one in owners]


def runtime_functions(name: str, owner: str = "") -> list[str]:
    """Returns the functions of the runtime, and the named steps, that a function reaches.

    Args:
        name: The function's name, with that of its class.
        owner: The class whose own methods an unqualified call may mean.
    """
    functions = backend_functions()
    reached: dict[str, None] = {}
    seen: set[str] = set()

    def visit(function: Function, owner: str) -> None:
        reached.update(dict.fromkeys(function.runtime_calls))
        targets = []
        for call in function.calls:
            own = f"{owner}::{call}"
            if call not in INDEX_CHECKS:
                targets.append(call if call in functions or own not in functions else own)
            targets += [f"{call}::{call}"] * (f"{call}::{call}" in functions)
        for receiver, call in function.method_calls:
            targets += _method(receiver, call, functions)
        for target in targets:
            if target in _NAMED_STEPS:
                reached[_NAMED_STEPS[target]] = None
            elif target in functions and target not in seen:
                seen.add(target)
                visit(functions[target], target.rpartition("::")[0])

    if name not in functions:
        raise SourceError(f"csrc: expected a definition of {name}")
    seen.add(name)
    visit(functions[name], owner or name.rpartition("::")[0])
    return list(reached)


def overrides() -> list[str]:
    """Returns the virtual functions of torch that csrc implements, as Class::function."""
    names: dict[str, None] = {}
    for part in _BACKEND_PARTS:
        for path in _files_of(part):
            text = _without_comments(read(path))
            for found in re.finditer(r"\b(?:class|struct)\s+(?:[A-Z_]+\s+)?(\w+)[^;{}()]*\{", text):
                if re.search(r"\bObserver\b", found[0]):  # of core/Observer.h, and not of torch
                    continue
                body = text[found.end() : _closing_brace(text, found.end() - 1)]
                for name in re.findall(r"(?<![~\w])(\w+)\([^;{}]*?\)[^;{}()]*\boverride\b", body):
                    names[f"{found[1]}::{name}"] = None
    return list(names)


@dataclass(frozen=True)
class RuntimeFunction:
    """A function of the C API."""

    name: str
    header: str
    users: tuple[str, ...]  # files of the backend that call it


def runtime_api() -> list[RuntimeFunction]:
    """Returns every function that the runtime's headers declare."""
    calls: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "csrc").rglob("*"), *(ROOT / "include").rglob("*")]):
        if path.suffix in (".h", ".cpp"):
            name = str(path.relative_to(ROOT))
            for function in set(re.findall(r"\b(or[A-Z]\w*)\s*\(", _without_comments(read(path)))):
                calls.setdefault(function, []).append(name)
    functions = []
    for header in sorted(RUNTIME_HEADERS.glob("*.h")):
        for name in re.findall(r"^OPENREG_API [^;(]*?(or\w+)\(", read(header), re.MULTILINE):
            functions.append(RuntimeFunction(name, header.name, tuple(calls.get(name, ()))))
    if not functions:
        raise SourceError("third_party/openreg_runtime: expected functions marked OPENREG_API")
    return functions
