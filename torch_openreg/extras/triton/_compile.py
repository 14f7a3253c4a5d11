"""Compiles the C++ source of a kernel to a shared library, once per source and machine."""

import functools
import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import torch_openreg
from torch_openreg.extras.triton._lowered import Lowered

__all__ = ["CompilerError", "compile_library", "compile_traced", "compiler_key", "default_cache"]

_INCLUDE = Path(torch_openreg.__file__).parent / "include"
_HEADERS = _INCLUDE / "torch_openreg" / "triton"
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-w",
)
# The line of a source that says whether the kernel tells its accesses.
_OBSERVED = "#define OPENREG_TRITON_OBSERVED {}\n"


class CompilerError(RuntimeError):
    """The C++ compiler is missing, or has failed."""


def default_cache() -> Path:
    """Returns the folder of compiled kernels: beside those of Triton."""
    folder = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    return Path(folder) / "openreg"


def compile_library(lowered: Lowered, folder: Path | None = None) -> Path:
    """Compiles a kernel, unless the cache has it.

    Args:
        lowered: The kernel.
        folder: Where compiled kernels are kept.

    Returns:
        The library. Its name contains all that it depends on.

    Raises:
        CompilerError: The compiler is missing, or has failed.
    """
    folder = folder or default_cache()
    return _cached(lowered.name, lowered.source, lowered.fuses, folder)


def compile_traced(name: str, source: str, fuses: bool) -> Path:
    """Compiles a kernel so that it tells its accesses, unless the cache has it.

    Args:
        name: The kernel's name.
        source: The source of a kernel that does not.
        fuses: As of :class:`Lowered`.

    Raises:
        CompilerError: The compiler is missing, or has failed.
    """
    traced = source.replace(_OBSERVED.format(0), _OBSERVED.format(1), 1)
    return _cached(name, traced, fuses, default_cache())


def _cached(name: str, source: str, fuses: bool, folder: Path) -> Path:
    parts = (compiler_key(), str(fuses), source)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    library = folder / f"{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile(name, source, fuses, library)
    return library


@functools.cache
def compiler_key() -> str:
    """Returns what compiled kernels depend on besides their sources, as one text.

    That is the compiler, the instructions of this processor, and our headers.
    """
    options = _run([*_compiler(), "-march=native", "-Q", "--help=target"])
    version = _run([*_compiler(), "--version"])
    headers = [path.read_text() for path in sorted(_HEADERS.glob("*.h"))]
    text = "\0".join([*_compiler(), version, options, *_FLAGS, *headers])
    return hashlib.sha256(text.encode()).hexdigest()


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "g++"))


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompilerError(
            f"{command[0]}: cannot be run: {error.strerror}; Triton kernels need g++, or the "
            "compiler that CXX names"
        ) from None
    if result.returncode != 0:
        raise CompilerError(f"{shlex.join(command)} failed:\n{result.stderr}")
    return result.stdout


def _compile(name: str, text: str, fuses: bool, library: Path) -> None:
    contract = "fast" if fuses else "off"
    # Another process may compile the same kernel: each replaces the file as a whole.
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        source = Path(scratch) / f"{name}.cpp"
        source.write_text(text)
        result = Path(scratch) / library.name
        _run(
            [
                *(*_compiler(), *_FLAGS, f"-ffp-contract={contract}", f"-I{_INCLUDE}"),
                *(str(source), "-o", str(result)),
            ]
        )
        result.replace(library)
