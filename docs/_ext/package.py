"""The names of the package and of its bindings, read as text."""

import ast
import re

from sources import ROOT, SourceError, read

_PUBLIC_MODULE = ROOT / "torch_openreg" / "openreg" / "__init__.py"
_STUB = ROOT / "torch_openreg" / "_C.pyi"


def public_names() -> list[str]:
    """Returns ``torch.openreg.__all__``."""
    for node in ast.parse(read(_PUBLIC_MODULE)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise SourceError("torch_openreg/openreg/__init__.py: expected __all__")


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
