"""The C++ interfaces of torch, as text and as a test extension."""

import functools
import importlib.util
import os
import re
import tempfile
from pathlib import Path
from types import ModuleType

import torch

from torch_openreg import cpp_extension

__all__ = ["extension", "extension_setting", "overrides", "virtuals"]

_TESTS = Path(__file__).resolve().parent
_INCLUDE = Path(torch.__file__).parent / "include"


_GUARD = "core/guard_test.cpp"
_VARIABLE = "BUILT_GUARD_TEST"  # the path of an extension that another process has built


@functools.cache
def _build_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()  # removed when the process ends


@functools.cache
def extension(source: str = _GUARD) -> ModuleType:
    """Builds an extension of the tests and imports it.

    Args:
        source: its only file, below ``test``.
    """
    name = f"openreg_{Path(source).stem}"
    if source == _GUARD and _VARIABLE in os.environ:
        spec = importlib.util.spec_from_file_location(name, os.environ[_VARIABLE])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return cpp_extension.load(
        name,
        [str(_TESTS / source)],
        extra_cflags=["-O0", "-g0", "-std=c++20"],
        build_directory=_build_folder().name,
    )


def extension_setting() -> dict[str, str]:
    """Returns the environment with which ``extension`` of another process uses this one."""
    return {_VARIABLE: extension().__file__}


def virtuals(header: str, name: str) -> set[str]:
    """Returns the virtual functions that a class of torch declares.

    Args:
        header: the header's path below torch's include folder.
        name: the class's name.
    """
    return set(
        re.findall(r"\bvirtual\s+[^;{~]*?\b(\w+)\s*\(", _class_body(_INCLUDE / header, name))
    )


def overrides(header: Path, name: str) -> set[str]:
    """Returns the functions that a class of the backend overrides."""
    return set(re.findall(r"(?<!~)\b(\w+)\s*\([^;{]*\boverride\b", _class_body(header, name)))


def _class_body(header: Path, name: str) -> str:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", header.read_text(), flags=re.DOTALL)
    match = re.search(rf"\b(?:struct|class)\s+(?:\w+\s+)?{name}\b[^;{{]*{{", text)
    if match is None:
        raise ValueError(f"{header}: expected a class {name}, found none")
    depth = 1
    for position in range(match.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[match.end() : position]
    raise ValueError(f"{header}: class {name} does not end")
