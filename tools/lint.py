"""Runs the linters: ``python tools/lint.py [--fix] [CHECK ...]``, all checks by default.

The list of checks, used by the pre-commit hooks and by ``.ci/run``. The tools come from
``requirements-lint.txt``; their settings are in ``pyproject.toml`` and ``.clang-format``.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parent.parent
_NATIVE_FOLDERS = ("csrc", "include", "third_party", "minimal", "test", "examples")
_NATIVE_SUFFIXES = (".c", ".cpp", ".h")
_BUILT_FOLDERS = {"build", "generated", "dist", "_build", "__pycache__"}
_BUILT_PACKAGE_FOLDERS = {Path("torch_openreg", "include"), Path("torch_openreg", "lib")}
_DOTTED_FOLDERS = {".ci", ".github"}

_RUNTIME = Path("third_party", "openreg_runtime")
# Words that make persons of threads and data, and an inversion. The brackets keep the pattern from
# matching itself.
_REFUSED_WORDS = re.compile(r"\b(who[e]ver|no[b]ody|be[\s/#*]+it)\b", re.IGNORECASE)
_PROSE_SUFFIXES = {*_NATIVE_SUFFIXES, ".py", ".pyi", ".md", ".toml", ".yml", ".yaml", ""}
_UNCHECKED_PROSE = {"CHANGELOG.md", "LICENSE"}

# The compilers that check OPENREG_GUARDED_BY and its kin (mutex.h of the runtime).
_CLANG_NAMES = ("clang++", *(f"clang++-{version}" for version in range(25, 13, -1)))

# Command of each check, and of its fix if the tool has one.
_CHECKS: dict[str, tuple[list[str], list[str] | None]] = {
    "ruff-check": (["ruff", "check"], ["ruff", "check", "--fix"]),
    "ruff-format": (["ruff", "format", "--check"], ["ruff", "format"]),
    "mypy": (["mypy"], None),
    "clang-format": (["clang-format", "--dry-run", "-Werror"], ["clang-format", "-i"]),
    "thread-safety": ([], None),
    "words": ([], None),
}


def main() -> int:
    """Runs the program and returns its exit code, 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python tools/lint.py", description=__doc__)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(_CHECKS))
    parser.add_argument("--fix", action="store_true", help="mend what the tools can mend")
    options = parser.parse_args()
    for name in options.checks:
        if name not in _CHECKS:
            parser.error(f"expected one of {', '.join(_CHECKS)}, got {name!r}")
    failed = [name for name in options.checks or _CHECKS if not _run(name, options.fix)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, is_fixing: bool) -> bool:
    if name == "thread-safety":
        return _check_thread_safety()
    if name == "words":
        return _check_words()
    check, fix = _CHECKS[name]
    tool, *arguments = fix if is_fixing and fix else check
    if name == "clang-format":
        arguments += [str(file) for file in _native_files()]
    print(f"--- {name}", flush=True)
    return subprocess.run([_find(tool), *arguments], cwd=_ROOT, check=False).returncode == 0


def _find(tool: str) -> str:
    """Returns the path of a tool, preferably of the one installed beside this Python."""
    beside_python = shutil.which(tool, path=Path(sys.executable).parent)
    found = beside_python or shutil.which(tool)
    if found is None:
        raise SystemExit(f"{tool} is missing: pip install -r requirements-lint.txt")
    return found


def _check_thread_safety() -> bool:
    """Checks the locks of every source that has a mutex with clang; reports if clang is missing."""
    compiler = next(filter(None, map(shutil.which, _CLANG_NAMES)), None)
    if compiler is None:
        print("--- thread-safety: not checked, as there is no clang++ (apt-get install clang)")
        return True
    print("--- thread-safety", flush=True)
    flags = ["-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror"]
    commands = _build_commands()
    is_right = True
    for source in _locking_sources():
        if source not in commands:
            print(f"{source} has not been built: pip install --no-build-isolation -e .")
            is_right = False
            continue
        command = [compiler, *commands[source][1:], *flags]
        is_right &= subprocess.run(command, cwd=_ROOT, check=False).returncode == 0
    return is_right


def _build_commands() -> dict[Path, list[str]]:
    """Returns the command of each source, as the build has noted it for editors."""
    file = _ROOT / "build" / "compile_commands.json"
    entries = json.loads(file.read_text()) if file.exists() else []
    return {Path(one["file"]).relative_to(_ROOT): one["arguments"] for one in entries}


def _check_words() -> bool:
    """Refuses words in all texts of the repository; see ``_REFUSED_WORDS``."""
    print("--- words", flush=True)
    found = [
        f"{file}:{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())}"
        for file in _prose_files()
        for text in [(_ROOT / file).read_text(encoding="utf-8", errors="replace")]
        for match in _REFUSED_WORDS.finditer(text)
    ]
    if found:
        print("\n".join([*found, "expected the thread, program or data that is meant"]))
    return not found


def _prose_files() -> list[Path]:
    return [
        file
        for file in _files()
        if file.suffix in _PROSE_SUFFIXES and file.name not in _UNCHECKED_PROSE
    ]


def _native_files() -> list[Path]:
    return [
        file
        for file in _files()
        if file.parts[0] in _NATIVE_FOLDERS and file.suffix in _NATIVE_SUFFIXES
    ]


def _files() -> list[Path]:
    """Returns the files in the tree. git is not asked: CI checks a copy that is no repository."""
    found = []
    for folder, folders, names in os.walk(_ROOT):
        folders[:] = [name for name in folders if not _is_left_out(Path(folder, name))]
        found += [Path(folder, name).relative_to(_ROOT) for name in names]
    return sorted(found)


def _is_left_out(folder: Path) -> bool:
    """Tells whether a folder holds what is built or installed; see .gitignore."""
    return (
        (folder.name.startswith(".") and folder.name not in _DOTTED_FOLDERS)
        or folder.name in _BUILT_FOLDERS
        or folder.name.endswith(".egg-info")
        or folder.relative_to(_ROOT) in _BUILT_PACKAGE_FOLDERS
        or (folder / "pyvenv.cfg").is_file()
    )


def _locking_sources() -> list[Path]:
    """Returns the sources of the runtime, and those of the backend that use a mutex themselves."""
    uses_mutex = re.compile(r"\b(Mutex|SharedMutex|Lock|SharedLock|ExclusiveLock)\b")
    return [
        file
        for file in _native_files()
        if file.suffix == ".cpp"
        and (
            file.is_relative_to(_RUNTIME / "src")
            or (file.is_relative_to("csrc") and uses_mutex.search((_ROOT / file).read_text()))
        )
    ]


if __name__ == "__main__":
    sys.exit(main())
