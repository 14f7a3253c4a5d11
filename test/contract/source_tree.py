"""The source tree as text: the files, their includes and calls."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import torch_openreg

__all__ = [
    "BACKEND",
    "FACTS",
    "INCLUDE",
    "LIBRARIES",
    "ROOT",
    "RUNTIME",
    "backend_files",
    "code_of",
    "compiler",
    "header_of",
    "includes_of",
    "part_of",
    "public_headers",
    "relative",
    "repository_files",
    "runtime_calls",
    "runtime_functions",
    "runtime_sources",
    "unit_of",
]

ROOT = Path(__file__).resolve().parents[2]
BACKEND = ROOT / "csrc"
INCLUDE = ROOT / "include" / "torch_openreg"
RUNTIME = ROOT / "third_party" / "openreg_runtime"
FACTS = ROOT / "build" / "generated" / "facts"  # written by the build

_PACKAGE = Path(torch_openreg.__file__).parent

# The native parts, from the bottom to the top.
LIBRARIES = {
    "libopenreg.so": _PACKAGE / "lib" / "libopenreg.so",
    "libtorch_openreg.so": _PACKAGE / "lib" / "libtorch_openreg.so",
    "_C": Path(torch_openreg._C.__file__),
}

_COMMENT_OR_TEXT = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL
)


def relative(path: Path) -> str:
    """Returns a file's path from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


def public_headers() -> list[Path]:
    """Returns the headers that the runtime offers."""
    return sorted((RUNTIME / "include" / "openreg").glob("*.h"))


def runtime_sources() -> list[Path]:
    """Returns the runtime's own files, its public headers not among them."""
    return sorted(path for path in (RUNTIME / "src").rglob("*") if path.suffix in (".h", ".cpp"))


def backend_files(*parts: str, suffixes: tuple[str, ...] = (".h", ".cpp")) -> list[Path]:
    """Returns the backend's files, its public headers among them, or those of the parts named."""
    folders = [root / part for root in (BACKEND, INCLUDE) for part in parts or [""]]
    return sorted(
        path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes
    )


def header_of(path: Path) -> Path | None:
    """The header of a source of the backend: beside it, or public; None if it has none."""
    beside = path.with_suffix(".h")
    part = part_of(path).removeprefix("extras/").split("/")[0]
    public = INCLUDE / part / beside.name
    return next((header for header in (beside, public) if header.exists()), None)


def code_of(path: Path) -> str:
    """Returns a C or C++ file without its comments and with empty string literals."""

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        return '""' if text[0] == '"' else " " if text[0] == "/" else text

    return _COMMENT_OR_TEXT.sub(blank, path.read_text())


def includes_of(path: Path) -> list[str]:
    """Returns the includes of a file, such as ``<vector>`` or ``"torch_openreg/core/Stream.h"``."""
    return re.findall(r'^\s*#\s*include\s+([<"][^>"]+[>"])', path.read_text(), re.MULTILINE)


_PARTS_OF_PUBLIC_FOLDERS = {
    "aten": "aten/launch",
    "inductor": "extras/inductor",
    "triton": "extras/triton",
}
_PARTS_OF_PUBLIC_HEADERS = {"KernelEnvironment.h": "aten/cpu", "KernelWrapper.h": "aten/wrapper"}


def part_of(path: Path) -> str:
    """Returns where a file of the backend belongs.

    That is a folder of csrc, such as "core", one of csrc/aten or csrc/extras, such as "aten/ops",
    or the bindings of an extra, such as "extras/graph/python".
    """
    if path.is_relative_to(INCLUDE):
        part = path.relative_to(INCLUDE).parts[0]
        of_folder = _PARTS_OF_PUBLIC_FOLDERS.get(part, part)
        return _PARTS_OF_PUBLIC_HEADERS.get(path.name, of_folder)
    if path.is_relative_to(FACTS):
        return "aten/facts"
    if path.stem == "Precompiled":  # included by the compiler's command, never by a file
        return "precompiled"
    folders = path.relative_to(BACKEND).parent.parts
    depth = {"aten": 2, "extras": 3 if folders[-1] == "python" else 2}.get(folders[0], 1)
    return "/".join(folders[:depth])


def unit_of(path: Path) -> str:
    """Returns what a header and its source are together, such as "aten/launch/TensorAlias"."""
    return f"{part_of(path)}/{path.stem}"


def runtime_functions() -> set[str]:
    """Returns the names of the functions that the runtime's public headers declare."""
    declaration = re.compile(r"\bOPENREG_API\b[^;(]*?\b(or\w+)\s*\(")
    return {name for path in public_headers() for name in declaration.findall(code_of(path))}


def runtime_calls(path: Path) -> set[str]:
    """Returns which functions of the runtime a file mentions."""
    return runtime_functions() & set(re.findall(r"\bor[A-Z]\w+", code_of(path)))


def repository_files() -> list[Path] | None:
    """Returns the files that belong to the repository; None outside of a clone."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return None
    output = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [ROOT / name for name in output.split("\0") if name]
    return [path for path in paths if path.is_file()]


def compiler() -> str | None:
    """Returns the C++ compiler, None if there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))
