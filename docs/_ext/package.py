"""The Python package, read as text: which public function reaches which binding."""

import ast
from collections.abc import Iterator
from pathlib import Path

from sources import ROOT, SourceError, read

_PUBLIC_MODULE = ROOT / "torch_openreg" / "openreg" / "__init__.py"


def _module_files() -> list[Path]:
    return [
        *sorted((ROOT / "torch_openreg" / "openreg").glob("*.py")),
        ROOT / "torch_openreg" / "testing.py",
    ]


def public_names() -> list[str]:
    """Returns ``torch.openreg.__all__``."""
    for node in ast.parse(read(_PUBLIC_MODULE)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise SourceError("torch_openreg/openreg/__init__.py: expected __all__")


def _exported_names() -> set[str]:
    """Names of torch.openreg: its public ones, and those that torch looks up."""
    names = set(public_names())
    for node in ast.parse(read(_PUBLIC_MODULE)).body:
        if isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


# Modules whose functions are used by the module's name.
_NAMED_MODULES = {"profiler": "torch.openreg.profiler", "testing": "torch_openreg.testing"}

# Helpers that nearly every function calls: their users are not worth a list.
_COMMON_HELPERS = {
    "_checked_index": "every function that takes a device",
    "_device_index": "every function that takes a device",
    "_get_device_index": "every function that takes a device",
    "_lazy_init": "every function that needs a device",
    "_check_fork": "every function that needs a device",
}


def python_users() -> dict[str, list[str]]:
    """Returns for each binding the Python functions that reach it, public ones by their name."""
    uses: dict[str, set[str]] = {}  # function -> bindings
    callers: dict[str, set[str]] = {}  # function -> functions that call it
    exported = _exported_names()
    for path in _module_files():
        for qualified, body in _python_functions(path):
            called = _called_names(body, qualified)
            uses[qualified] = {name[3:] for name in called if name.startswith("_C.")}
            for name in called:
                callers.setdefault(name, set()).add(qualified)

    def public(function: str, seen: frozenset[str]) -> set[str]:
        module = next((m for m in _NAMED_MODULES if function.startswith(f"{m}.")), None)
        name = function.split(".", 1)[1] if module else function
        head = name.split(".")[0]
        if head in _COMMON_HELPERS:
            label = "torch.openreg." if head in exported else ""
            return {f"`{label}{head}` ({_COMMON_HELPERS[head]})"}
        if module and not head.startswith("_"):
            return {f"`{_NAMED_MODULES[module]}.{_shown(name)}`"}
        if head in exported:
            return {f"`torch.openreg.{_shown(name)}`"}
        found: set[str] = set()
        for caller in callers.get(head, set()) | callers.get(name, set()):
            if caller not in seen:
                found |= public(caller, seen | {caller})
        return found

    users: dict[str, set[str]] = {}
    for function, bindings in uses.items():
        for binding in bindings:
            users.setdefault(binding, set()).update(public(function, frozenset({function})))
    return {binding: sorted(names) for binding, names in users.items()}


def _shown(name: str) -> str:
    """A method's public name: dunder methods are listed as their class."""
    return ".".join(part for part in name.split(".") if not part.startswith("_") or "." not in name)


def _python_functions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    prefix = f"{path.stem}." if path.stem in _NAMED_MODULES else ""
    for node in ast.parse(read(path)).body:
        if isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield f"{prefix}{node.name}.{member.name}", member
        elif isinstance(node, ast.If):
            # Attributes of the module that are computed: `if name == "x": return f()`.
            for test in ast.walk(node):
                if isinstance(test, ast.If) and isinstance(test.test, ast.Compare):
                    yield f"{prefix}{ast.literal_eval(test.test.comparators[0])}", test


def _called_names(body: ast.AST, qualified: str) -> set[str]:
    names = set()
    for node in ast.walk(body):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "_C":
                names.add(f"_C.{node.attr}")
            elif node.value.id == "self" and qualified.count(".") >= 1:
                owner = qualified.rpartition(".")[0].rpartition(".")[2]
                names.add(f"{owner}.{node.attr}")
        elif isinstance(node, ast.Name):
            names.add(node.id)
    return names
