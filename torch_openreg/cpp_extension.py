"""Builds C++ extensions that launch kernels on openreg streams.

The headers of the backend and of the runtime come with the package: ``<torch_openreg/core/...>``,
``<torch_openreg/aten/...>``, ``<torch_openreg/random/...>`` and ``<openreg/openreg.h>``. They match
the installed libraries only: rebuild extensions for every version of this package.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import setuptools
import torch
from torch.utils import cpp_extension

from torch_openreg._version import library_folder

__all__ = ["OpenRegExtension", "include_paths", "library_paths", "load"]

_PACKAGE = Path(__file__).resolve().parent
_LIBRARIES = ("torch_openreg", "openreg")


def include_paths() -> list[str]:
    """Returns the folders to search for headers, without torch's own."""
    return [str(_PACKAGE / "include")]


def library_paths() -> list[str]:
    """Returns the folders to search for libraries, without torch's own."""
    folder = _PACKAGE / "lib"
    return list(dict.fromkeys([library_folder(str(_PACKAGE), torch.__version__), str(folder)]))


# docs: openreg-extension
def OpenRegExtension(name: str, sources: Sequence[str], **options: Any) -> setuptools.Extension:
    """Describes an extension for ``setup.py``, to be built by torch's ``BuildExtension``.

    It needs no run-time search path: ``import torch`` or ``import torch_openreg`` has loaded the
    libraries by the time that the extension needs them.

    Args:
        name: The module's full name.
        sources: The C++ files.
        options: As for ``setuptools.Extension``. Its ``include_dirs``, ``library_dirs`` and
            ``libraries`` are searched before those of openreg.
    """
    options["include_dirs"] = [*options.get("include_dirs", ()), *include_paths()]
    options["library_dirs"] = [*options.get("library_dirs", ()), *library_paths()]
    options["libraries"] = [*options.get("libraries", ()), *_LIBRARIES]
    return cpp_extension.CppExtension(name, list(sources), **options)


# docs: end


def load(
    name: str,
    sources: str | Sequence[str],
    *,
    extra_include_paths: Sequence[str] = (),
    extra_ldflags: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Builds an extension now and loads it, as ``torch.utils.cpp_extension.load`` does.

    Args:
        name: The extension's name.
        sources: The C++ files.
        extra_include_paths: Folders that are searched before those of openreg.
        extra_ldflags: Linker flags that come before those of openreg.
        options: All other arguments of ``torch.utils.cpp_extension.load``.

    Returns:
        The module; None with ``is_python_module=False``, for a library that only registers
        operators.
    """
    return cpp_extension.load(
        name,
        sources if isinstance(sources, str) else list(sources),
        extra_include_paths=[*extra_include_paths, *include_paths()],
        extra_ldflags=[
            *extra_ldflags,
            *(f"-L{path}" for path in library_paths()),
            *(f"-l{library}" for library in _LIBRARIES),
        ],
        **options,
    )
