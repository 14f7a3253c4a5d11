"""The requirements of a build, checked in advance: a missing one is a one-line error.

This file runs with any Python 3.9 or newer, so that older ones get a clear error.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "MachineError",
    "affordable_jobs",
    "check_compiler",
    "check_disk",
    "check_headers",
    "check_machine",
    "check_python",
    "check_tree",
    "full_disk",
]

_OLDEST_PYTHON = (3, 11)
_OLDEST_GCC = 11

_MIB = 1 << 20
# A build takes 490 MiB.
_BUILD_BYTES = 600 * _MIB
# The requirement of a partial build, and the rest that a failed build leaves on a full disk.
_SPARE_BYTES = 64 * _MIB
# Of a compiler, at most.
_JOB_BYTES = 1380 * _MIB


class MachineError(Exception):
    """A missing requirement and what to do, as one line for the user."""


def check_machine(root: Path) -> None:
    """Raises MachineError if the package cannot be built here.

    Args:
        root: The source tree.
    """
    check_python()
    check_tree(root)
    check_compiler(shlex.split(os.environ.get("CXX", "c++")))
    check_headers(shlex.split(os.environ.get("CXX", "c++")), Path(sysconfig.get_path("include")))
    check_disk(root)


def check_python(version: tuple[int, int, int] = sys.version_info[:3]) -> None:
    """Raises MachineError if this Python is too old."""
    if version[:2] < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        raise MachineError(
            f"expected Python {oldest} or newer, got {'.'.join(map(str, version))}. Make the "
            f"environment with a newer one: python{oldest} -m venv --clear .venv"
        )


def check_tree(root: Path) -> None:
    """Raises MachineError if the source tree cannot be written to."""
    try:
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise MachineError(
            f"the build writes into the source tree, but {root} is not writable "
            f"({error.strerror}). Copy it and install the copy: cp -r {shlex.quote(str(root))} "
            "~/torch_openreg"
        ) from None


def check_compiler(command: Sequence[str]) -> None:
    """Raises MachineError if the compiler is missing or too old."""
    how = "apt install g++, dnf install gcc-c++ or the like; CXX=PROGRAM chooses one"
    name = shlex.join(command)
    try:
        result = _run(command, ["-E", "-P", "-x", "c++", "-"], "__GNUC__ __clang_major__")
    except OSError as error:
        raise MachineError(
            f"expected a C++ compiler, g++ {_OLDEST_GCC} or newer, but '{name}' cannot be started "
            f"({error.strerror}). Install one: {how}"
        ) from None
    words = result.stdout.split()
    if result.returncode != 0 or len(words) < 2 or not words[-2].isdigit():
        reason = _first_error(result) or "it does not say what it is"
        raise MachineError(
            f"expected a C++ compiler, g++ {_OLDEST_GCC} or newer, but '{name}' fails: {reason}. "
            f"Install one: {how}"
        )
    gcc, clang = words[-2:]
    # clang pretends to be an old g++.
    if not clang.isdigit() and int(gcc) < _OLDEST_GCC:
        raise MachineError(
            f"expected g++ {_OLDEST_GCC} or newer, but '{name}' is g++ {gcc}. Install a newer one "
            f"and choose it: CXX=g++-{_OLDEST_GCC + 1} pip install ..."
        )


def check_headers(command: Sequence[str], include: Path) -> None:
    """Raises MachineError if the compiler does not find headers of C++ and Python.

    Args:
        command: The compiler.
        include: Where the headers of this Python are, if they are installed.
    """
    if not (include / "Python.h").is_file():
        python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        raise MachineError(
            f"expected the headers of Python, but there is no {include}/Python.h. Install them: "
            f"apt install {python}-dev, dnf install python3-devel or the like"
        )
    program = "#include <Python.h>\n#include <version>\n#include <vector>\n"
    options = ["-x", "c++", "-std=c++20", "-fsyntax-only", f"-I{include}"]
    result = _run(command, [*options, "-"], program)
    if result.returncode != 0:
        raise MachineError(
            f"expected a compiler for C++20 and headers of C and C++, but '{shlex.join(command)}' "
            f"fails: {_first_error(result)}. Install them: apt install g++, dnf install gcc-c++ or "
            "the like"
        )


def check_disk(root: Path) -> None:
    """Raises MachineError if there is too little space on the disk for a build."""
    is_built = (root / "build" / "precompiled").exists()
    needed = _SPARE_BYTES if is_built else _BUILD_BYTES
    free = shutil.disk_usage(root).free
    if free < needed:
        raise MachineError(
            f"expected {needed // _MIB} MiB of free disk space for the build in {root}, got "
            f"{free // _MIB} MiB"
        )
    _check_temporary_folder()


def _check_temporary_folder() -> None:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < _SPARE_BYTES:
        raise MachineError(
            f"expected {_SPARE_BYTES // _MIB} MiB of free disk space in {folder} for temporary "
            f"files, got {free // _MIB} MiB. TMPDIR=FOLDER chooses another place"
        )


def full_disk(root: Path) -> str | None:
    """Returns the error text if a build failed on a full disk."""
    for folder in (str(root), tempfile.gettempdir()):
        free = shutil.disk_usage(folder).free
        if free < _SPARE_BYTES:
            return (
                f"the build failed: the disk of {folder} is full ({free // _MIB} MiB are free, a "
                f"build takes {_BUILD_BYTES // _MIB} MiB). Free some space and repeat the command: "
                "what is built is kept"
            )
    return None


def affordable_jobs() -> int | None:
    """Returns how many compilers the memory has room for, if that is less than there would be.

    ninja starts two more than there are processors.
    """
    available = _available_memory()
    if available is None:
        return None
    jobs = max(1, available // _JOB_BYTES)
    return jobs if jobs < len(os.sched_getaffinity(0)) + 2 else None


def _available_memory() -> int | None:
    """Returns the available memory in bytes, if the system reports it."""
    amounts = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                amounts.append(int(line.split()[1]) << 10)
        # A container's limit.
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit.isdigit():
            amounts.append(int(limit))
    except OSError:
        pass
    return min(amounts, default=None)


def _run(
    command: Sequence[str], arguments: Sequence[str], text: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _first_error(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "").strip()
