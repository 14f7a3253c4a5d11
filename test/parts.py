"""The parts of the tests: those of ``python test/run.py``, few of these, the rest, and few of that.

``shares.toml`` lists the test files that take long, each with the share of its tests that the
default run has, and with the slow tests that it does not have. The other tests of these files are
the rest, which ``test/run.py --rest`` runs. A file without an entry runs whole by default, and has
no rest. So each test is in one of the two, and none is in both.

Two parts are samples of these, for CI: ``--few`` has about a third of the default run's tests,
chosen in the same way from each file, for a run of all files as another device type; ``--ci`` has
a twentieth of the rest of each file without the slow tests, which CI runs after the default part.

A new file needs no entry unless it takes more than about 20 seconds. A sweep over a database of
torch then has a line such as ``"generic/test_ops_out.py" = {seconds = 70, share = 0.2}``. This is
about tests; how many samples and dtypes a test has, by default and with ``--full``, is up to the
sweep: ``sampled``, ``crossed`` and ``IS_FULL`` of ``torch_openreg.conformance.sweep``. ``python
test/shares.py FOLDER`` computes the shares from the durations of a run.

Which tests the share consists of depends on their names and nothing else: the same tests run each
time, spread over operators, dtypes and devices, and other ones in each sweep. Of each parametrized
test and of each class with others, one runs at least, unless all of them are slow; likewise with
each value of a parameter that has few, such as the two modes of a module. Of each file, one runs in
any case. A test with an entry in one of the lists of known differences runs by default, so that an
entry that has become wrong shows.

Imports no torch: conftest.py does it with the parts in mind, before the device type is known.
"""

import functools
import math
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "PARTS",
    "Share",
    "Test",
    "divide",
    "part_of",
    "shares",
    "value_name",
]

PARTS = ("default", "few", "rest", "ci")
_FEW = 0.3  # of the default part
_CI = 0.05  # of the rest
TABLE = Path(__file__).with_name("shares.toml")


@dataclass(frozen=True)
class Share:
    """An entry of shares.toml.

    Attributes:
        seconds: how long the tests of the file take together on an idle machine.
        share: which part of them the default run has, above 0; 1 for all but the slow ones.
        slow: the names of tests that the default run does not have.
    """

    seconds: float
    share: float
    slow: tuple[str, ...] = ()


@dataclass(frozen=True)
class Test:
    """The identity of a test.

    Attributes:
        name: its unique name in its file, such as "TestForward::test_forward_abs".
        group: the parametrized test that it is an instance of, or its class.
        parameters: the names of the parameters' values.
        is_kept: whether the default run has it in any case.
    """

    __test__ = False  # is none of pytest's

    name: str
    group: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    is_kept: bool = False

    @functools.cached_property
    def order(self) -> tuple[int, str]:
        """Where the test stands among others: anywhere, but always at the same place."""
        return zlib.crc32(self.name.encode()), self.name


def shares() -> dict[str, Share]:
    """Returns the entries of shares.toml by file, relative to test/.

    Raises:
        ValueError: An entry has a share that divides nothing.
    """
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    entries = {
        file: Share(entry["seconds"], entry["share"], tuple(entry.get("slow", ())))
        for file, entry in table.items()
    }
    for file, entry in entries.items():
        if not (0 < entry.share < 1 or (entry.share == 1 and entry.slow)):
            raise ValueError(
                f"shares.toml: {file}: expected a share above 0 and below 1, or 1 and slow tests, "
                f"got {entry.share}; a file that runs whole by default has no entry"
            )
    return entries


def part_of(tests: Sequence[Test], entry: Share | None, part: str) -> set[str]:
    """Returns the names of the tests of one file, with its entry if it has one, in a part.

    Raises:
        ValueError: A slow test is none of the file's.
    """
    if part == "few":
        share, slow = (1.0, ()) if entry is None else (entry.share, entry.slow)
        return divide(tests, Share(0, _FEW * share, slow))
    names = {test.name for test in tests}
    by_default = names if entry is None else divide(tests, entry)
    if part == "default":
        return by_default
    rest = names - by_default
    if part == "rest" or entry is None:
        return rest
    # Not one of each group, as the default part has these.
    usual = [test for test in tests if test.name in rest - {*entry.slow}]
    count = max(1, round(_CI * len(usual)))
    return {test.name for test in sorted(usual, key=lambda test: test.order)[:count]}


def divide(tests: Sequence[Test], entry: Share) -> set[str]:
    """Returns the names of the tests of one file that the default run has.

    Raises:
        ValueError: A slow test is none of the file's.
    """
    unknown = {*entry.slow} - {test.name for test in tests}
    if unknown:
        raise ValueError(
            f"shares.toml: expected slow tests to be tests, got {', '.join(sorted(unknown))}"
        )
    groups: dict[str, list[Test]] = {}
    for test in sorted(tests, key=lambda test: test.order):
        groups.setdefault(test.group, []).append(test)
    chosen = {test.name for group in groups.values() for test in _chosen(group, entry)}
    return chosen or {min(tests, key=lambda test: test.order).name}


def _chosen(group: Sequence[Test], entry: Share) -> list[Test]:
    count = max(1, round(entry.share * len(group)))
    kept = [test for test in group if test.is_kept]
    others = [test for test in group if not test.is_kept and test.name not in entry.slow]
    chosen = kept + others[: max(0, count - len(kept))]
    for name in _sections(group):
        values = {test.parameters.get(name) for test in chosen}
        for test in others:
            value = test.parameters.get(name)
            if value not in values:
                values.add(value)
                chosen.append(test)
    return chosen


def _sections(group: Sequence[Test]) -> list[str]:
    """The parameters that have few values, which divide a test into sections."""
    values: dict[str, set[str]] = {}
    for test in group:
        for name, value in test.parameters.items():
            values.setdefault(name, set()).add(value)
    limit = math.isqrt(len(group))
    return [name for name, some in values.items() if len(some) <= limit]


def value_name(value: Any) -> str | None:
    """A representation of a value that is the same in each process; None for other objects."""
    is_plain = value is None or isinstance(value, bool | int | float | str)
    # Those of torch, which is not imported here.
    return str(value) if is_plain or type(value).__name__ in ("dtype", "device") else None
