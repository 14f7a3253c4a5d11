"""Writes shares.toml from the durations of a run: ``python test/shares.py FOLDER``.

FOLDER has the JUnit files of ``python test/run.py --all --durations FOLDER``, on a machine that has
nothing else to do. After a run of some files only, the others keep their entries. parts.py
describes the shares.

The default run has a fixed time. It leaves out tests that are slow by themselves. Files that are
short without these run completely; the others share the remaining time. A file that takes four
times as long as another has twice the time.
"""

import argparse
import math
import sys
import xml.etree.ElementTree
from collections.abc import Mapping
from pathlib import Path

from parts import TABLE, Share, shares

__all__ = ["computed", "durations", "main", "table"]

_ROOT = Path(__file__).resolve().parent.parent
# Of the default run. It takes a tenth longer than that, as each class has one test at least.
_RUN_S = 250
_JOBS = 2
_START_S = 1.2  # of the process of one file, a child of a server that has imported torch
_LONG_S = 12  # of the tests of a file
_SLOW_S = 10  # of one test
_MAX_SHARE = 0.7  # above it, the start of a second part costs more than it saves
# Files that are not divided: setting up their class takes the time, and each part would pay for it.
_WHOLE = (
    "aten/test_codegen.py",
    "core/test_guard_cpp.py",
    "extras/distributed/test_exits.py",
    "python/test_extension.py",
    "python/test_versions.py",
)

_HEAD = """\
# The share that the default run has of each test file that takes long, without the tests that are
# slow by themselves, and the seconds that all of its tests take on an idle machine. See parts.py;
# `python test/shares.py FOLDER` writes this file.
"""


def main() -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python test/shares.py", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of JUnit files")
    folder = parser.parse_args().folder
    measured = durations(folder)
    if not measured:
        parser.error(f"{folder}: expected JUnit files of tests of this folder, found none")
    count = len(list((_ROOT / "test").rglob("test_*.py")))
    entries = computed(measured, shares(), count)
    TABLE.write_text(table(entries), encoding="utf-8")
    print(f"{len(entries)} files are divided, {count - len(entries)} run whole by default")
    return 0


def durations(folder: Path) -> dict[str, dict[str, float]]:
    """Returns the seconds of each test, from JUnit files, by the file's path in test/ and name."""
    seconds: dict[str, dict[str, float]] = {}
    for path in sorted(folder.rglob("*.xml")):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            class_name = case.get("classname", "")
            file = _file_of(class_name)
            if file is not None:
                class_name = class_name.removeprefix(f"test.{file[:-3].replace('/', '.')}")
                name = "::".join([*class_name.split(".")[1:], case.get("name", "")])
                seconds.setdefault(file, {})[name] = float(case.get("time", "0"))
    return seconds


def _file_of(class_name: str) -> str | None:
    """The file of a test whose class is, for example, test.generic.test_func.TestTransforms."""
    parts = class_name.split(".")
    for length in range(len(parts), 1, -1):
        path = Path(*parts[:length]).with_suffix(".py")
        if parts[0] == "test" and (_ROOT / path).is_file():
            return path.relative_to("test").as_posix()
    return None


def computed(
    measured: Mapping[str, Mapping[str, float]], before: Mapping[str, Share], file_count: int
) -> dict[str, Share]:
    """Returns the entries of the files that take long.

    Args:
        measured: the seconds of each test, by file and name.
        before: entries, for files that were not measured.
        file_count: how many files there are.

    Raises:
        ValueError: The time is not enough for the other files.
    """
    slow = {file: entry.slow for file, entry in before.items()}
    seconds = {file: entry.seconds for file, entry in before.items()}
    usual = dict(seconds)  # without the slow tests
    for file, tests in measured.items():
        is_whole = file in _WHOLE
        slow[file] = tuple(
            sorted(name for name, time in tests.items() if time > _SLOW_S and not is_whole)
        )
        seconds[file] = sum(tests.values())
        usual[file] = sum(time for name, time in tests.items() if name not in slow[file])
    long = {file: time for file, time in usual.items() if time > _LONG_S and file not in _WHOLE}
    whole = sum(time for file, time in usual.items() if file not in long)
    left = _RUN_S * _JOBS - _START_S * file_count - whole
    if long and left <= 0:
        raise ValueError(
            f"shares.py: expected files below {_LONG_S} s to take less than {_RUN_S * _JOBS} s "
            f"with their start, but {left:.0f} s are left for the others; lower _LONG_S"
        )
    low, high = 0.0, math.sqrt(max(long.values(), default=0.0))
    for _ in range(50):
        factor = (low + high) / 2
        total = sum(_share(time, factor) * time for time in long.values())
        low, high = (factor, high) if total < left else (low, factor)
    return {
        file: Share(
            round(seconds[file]),
            float(f"{_share(usual[file], low):.2g}") if file in long else 1,
            slow[file],
        )
        for file in sorted(seconds)
        if file in long or slow[file]
    }


def _share(seconds: float, factor: float) -> float:
    return min(_MAX_SHARE, factor / math.sqrt(seconds))


def table(entries: Mapping[str, Share]) -> str:
    """Returns the text of shares.toml."""
    text = _HEAD
    for file, entry in sorted(entries.items()):
        text += f'\n["{file}"]\nseconds = {entry.seconds:g}\nshare = {entry.share:g}\n'
        if entry.slow:
            text += "slow = [\n" + "".join(f'    "{name}",\n' for name in entry.slow) + "]\n"
    return text


if __name__ == "__main__":
    sys.exit(main())
