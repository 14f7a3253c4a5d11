"""Prints what a build without extras compiles and installs: the files of the core.

``python tools/core_files.py`` prints one path a line, ``--page`` writes the table of them into
docs/architecture.md. A build with ``OPENREG_EXTRAS=none`` has these files and no others, except for
what is generated from them; a test compares.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / "tools" / "backend"), str(_ROOT / "docs")]

from openreg_extras import extra_of  # noqa: E402  (needs the path above)
from page_table import PageTable  # noqa: E402

__all__ = ["PLACE", "core_files", "main", "table"]

PLACE = PageTable(_ROOT / "docs" / "architecture.md", "core", "python tools/core_files.py --page")

_RUNTIME = "third_party/openreg_runtime"
# What is compiled, what compiled code includes, and what is installed.
_PATTERNS = (
    f"{_RUNTIME}/include/openreg/*.h",
    f"{_RUNTIME}/src/**/*.cpp",
    f"{_RUNTIME}/src/**/*.h",
    "include/torch_openreg/**/*.h",
    "csrc/**/*.cpp",
    "csrc/**/*.h",
    "csrc/aten/facts/*.yaml",
    "csrc/aten/structured/codegen/*.py",
    "torch_openreg/**/*.py",
    "torch_openreg/*.pyi",
    "torch-stubs/**/*.pyi",
    "triton_openreg/*.py",
    "openreg_bringup.py",
    "pytest_openreg.py",
    "torch_openreg_autoload.py",
)
# Folders that are installed, and are parts of the build.
_BUILT = ("torch_openreg/include/", "torch_openreg/lib/")
_OUTER = {"torch_openreg/conformance", "torch_openreg/demo"}  # by their number, not their names
_SUFFIXES = (".cpp", ".h", ".py", ".pyi")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python tools/core_files.py", description=__doc__)
    parser.add_argument("--page", action="store_true", help="write the table into the page")
    if parser.parse_args(arguments).page:
        PLACE.write(table(core_files()))
    else:
        print(*core_files(), sep="\n")
    return 0


def core_files() -> list[str]:
    """Returns the paths of the core's files, from the root of the repository."""
    paths = {
        path.relative_to(_ROOT).as_posix()
        for pattern in _PATTERNS
        for path in _ROOT.glob(pattern)
        if path.is_file()
    }
    return sorted(path for path in paths if extra_of(path) is None and not path.startswith(_BUILT))


def table(files: Sequence[str]) -> str:
    """Returns a table of the files by folders: how many, and the nouns that they are about."""
    folders: dict[str, list[Path]] = {}
    for file in map(Path, files):
        folders.setdefault(file.parent.as_posix(), []).append(file)
    lines = ["| place | files | nouns |", "|---|---|---|"]
    for folder, members in sorted(folders.items()):
        nouns = [] if folder in _OUTER else sorted({_noun(file) for file in members})
        place = f"`{folder}/`" if folder != "." else "the root"
        lines.append(f"| {place} | {len(members)} | {', '.join(nouns) or 'a part of its own'} |")
    lines.append(f"| together | {len(files)} | |")
    return "\n".join(lines) + "\n"


def _noun(file: Path) -> str:
    return file.stem if file.suffix in _SUFFIXES else file.name


if __name__ == "__main__":
    sys.exit(main())
