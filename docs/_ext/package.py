"""The names of the package and of its bindings, read as text."""

import ast
import re
from pathlib import Path

from sources import ROOT, SourceError, read

_PUBLIC_MODULE = ROOT / "torch_openreg" / "openreg" / "__init__.py"
_EXTRAS = ROOT / "torch_openreg" / "extras"
_STUB = ROOT / "torch_openreg" / "_C.pyi"


def public_names() -> list[str]:
    """Returns ``torch.openreg.__all__``: the names of its modules, then those of extras."""
    names = _listed(_PUBLIC_MODULE)
    text = read(_PUBLIC_MODULE)
    for module in re.findall(r"^__all__ \+= (\w+)\.__all__$", text, re.MULTILINE):
        names += _listed(_PUBLIC_MODULE.with_name(f"{module}.py"))
    removed = set(re.findall(r'^__all__\.remove\("(\w+)"\)$', text, re.MULTILINE))
    for folder in sorted(_EXTRAS.iterdir()):
        if (folder / "__init__.py").is_file():
            names += _added(folder)
    return sorted({*names} - removed)


def _listed(module: Path) -> list[str]:
    """Returns the names in the list ``__all__`` of a module."""
    for node in ast.parse(read(module)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise SourceError(f"{module.relative_to(ROOT)}: expected __all__")


def _added(folder: Path) -> list[str]:
    """Returns the names that the folder of an extra adds."""
    text = read(folder / "__init__.py")
    names = re.findall(r"add_module\(module, (\w+), is_public=True\)", text)
    for source, added in re.findall(r"add_names\(module, (\w+), (.*)\)\n", text):
        is_all = added == f"{source}.__all__"
        names += _listed(folder / f"{source}.py") if is_all else ast.literal_eval(added)
    return names


def stub_names() -> list[str]:
    """Returns the names that torch_openreg/_C.pyi declares, those of members with their class."""
    names = _function_names(ast.parse(read(_STUB)).body, "")
    return list(dict.fromkeys(names))  # a property with a setter is there twice


def _function_names(body: list[ast.stmt], prefix: str) -> list[str]:
    names = []
    for node in body:
        if isinstance(node, ast.FunctionDef):
            names.append(prefix + node.name)
        elif isinstance(node, ast.ClassDef):
            names += _function_names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and not prefix:
            names.append(ast.unparse(node.targets[0]))
    return names


def used_bindings() -> set[str]:
    """Returns the names ``_C.NAME`` in the Python files of the package and of the tests."""
    return {
        name
        for folder in ("torch_openreg", "test")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\b_C\.(\w+)", read(path))
    }
