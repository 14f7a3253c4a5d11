"""Writes shares.toml from the durations of a run: ``python test/shares.py FOLDER``.

FOLDER has the JUnit files of ``python test/run.py --all --durations FOLDER``, on a machine that has
nothing else to do. After a run of some files only, the others keep their durations. See parts.py
for what the shares are about.

The default run has a fixed time. Files that do not take long run whole; the others share what they
leave. A file that takes four times as long as another gets twice the time.
"""

import argparse
import math
import sys
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from parts import TABLE, Share, shares

__all__ = ["computed", "durations", "main", "table"]

_ROOT = Path(__file__).resolve().parent.parent
_RUN_S = 520  # of the default run
_JOBS = 2
_START_S = 4.5  # of the processes of one file, with the import of torch
_LONG_S = 20
_MAX_SHARE = 0.7  # above it, the start of a second part costs more than the division saves

_HEAD = """\
# The share that the default run has of each test file that takes long, and the seconds that all of
# its tests take on an idle machine. See parts.py; `python test/shares.py FOLDER` writes this file.
"""


def main() -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python test/shares.py", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of JUnit files")
    folder = parser.parse_args().folder
    measured = durations(folder)
    if not measured:
        parser.error(f"{folder}: expected JUnit files of tests of this folder, found none")
    seconds = {file: entry.seconds for file, entry in shares().items()} | measured
    count = len(list((_ROOT / "test").rglob("test_*.py")))
    entries = computed(seconds, count)
    TABLE.write_text(table(entries), encoding="utf-8")
    print(f"{len(entries)} files are divided, {count - len(entries)} run whole by default")
    return 0


def durations(folder: Path) -> dict[str, float]:
    """Returns the seconds of each file's tests, from JUnit files, by the file's path in test/."""
    seconds: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.xml")):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            file = _file_of(case.get("classname", ""))
            if file is not None:
                seconds[file] += float(case.get("time", "0"))
    return dict(seconds)


def _file_of(class_name: str) -> str | None:
    """The file of a test whose class is, for example, test.generic.test_func.TestTransforms."""
    parts = class_name.split(".")
    for length in range(len(parts), 1, -1):
        path = Path(*parts[:length]).with_suffix(".py")
        if parts[0] == "test" and (_ROOT / path).is_file():
            return path.relative_to("test").as_posix()
    return None


def computed(seconds: Mapping[str, float], file_count: int) -> dict[str, Share]:
    """Returns the entries of the files that take long.

    Args:
        seconds: of the tests of each file.
        file_count: how many files there are.

    Raises:
        ValueError: The time is not enough for the other files.
    """
    long = {file: time for file, time in seconds.items() if time > _LONG_S}
    whole = sum(time for file, time in seconds.items() if file not in long)
    left = _RUN_S * _JOBS - _START_S * file_count - whole
    if long and left <= 0:
        raise ValueError(
            f"shares.py: expected files below {_LONG_S} s to take less than {_RUN_S * _JOBS} s "
            f"together, but {left:.0f} s are left for the others; lower _LONG_S"
        )
    low, high = 0.0, math.sqrt(max(long.values(), default=0.0))
    for _ in range(50):
        factor = (low + high) / 2
        total = sum(_share(time, factor) * time for time in long.values())
        low, high = (factor, high) if total < left else (low, factor)
    return {
        file: Share(round(time), max(0.01, round(_share(time, low), 2)))
        for file, time in sorted(long.items())
    }


def _share(seconds: float, factor: float) -> float:
    return min(_MAX_SHARE, factor / math.sqrt(seconds))


def table(entries: Mapping[str, Share]) -> str:
    """Returns the text of shares.toml."""
    lines = [
        f'"{file}" = {{seconds = {entry.seconds:g}, share = {entry.share:g}}}\n'
        for file, entry in sorted(entries.items())
    ]
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
