"""Which tests of a file the default run of ``python test/run.py`` has: a sample, by two markers.

``pytestmark = pytest.mark.sample(0.2)`` is in a file whose tests take more than about ten seconds:
a fifth of them runs by default. ``@pytest.mark.slow`` is on a test that takes more than ten seconds
by itself, and does not run by default; ``@pytest.mark.slow("of_the_cpu", "large")`` names the
instances of a parametrized test that are slow, by the ends of their names. A file without a marker
runs whole. The last lines of a run name the folders whose tests were left out, and how many.

This is about tests; how many samples and dtypes a test has, by default and with ``--full``, is up
to the sweep: ``sampled``, ``crossed`` and ``IS_FULL`` of ``torch_openreg.conformance.sweep``.

Which tests the sample consists of depends on a hash of their names and nothing else: the same tests
run each time, spread over operators, dtypes and devices, and other ones in each sweep. Of each
parametrized test and of each class with others, one runs at least, unless all of them are slow;
likewise with each value of a parameter that has few, such as the two modes of a module. Of each
file, one runs in any case. A test with an entry in one of the lists of known differences runs by
default, so that an entry that has become wrong shows.

``--sample SCALE`` multiplies the shares. A larger one has all tests of a smaller one.

Imports no torch: conftest.py does it with the sample in mind, before the device type is known.
"""

import functools
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Test", "chosen", "share_of", "value_name"]


@dataclass(frozen=True)
class Test:
    """The identity of a test.

    Attributes:
        name: its unique name in its file, such as "TestForward::test_forward_abs".
        group: the parametrized test that it is an instance of, or its class.
        parameters: the names of the parameters' values.
        is_kept: whether a sample has it in any case.
        is_slow: whether a sample does not have it.
    """

    __test__ = False  # is none of pytest's

    name: str
    group: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    is_kept: bool = False
    is_slow: bool = False

    @functools.cached_property
    def order(self) -> tuple[int, str]:
        """Where the test stands among others: anywhere, but always at the same place."""
        return zlib.crc32(self.name.encode()), self.name


def share_of(file: Path) -> float:
    """Returns the share in the marker of a file, 1 if it has none. Imports nothing."""
    marker = re.search(
        r"^pytestmark = pytest\.mark\.sample\((.*)\)$", file.read_text("utf-8"), re.MULTILINE
    )
    return float(marker[1]) if marker else 1


def chosen(tests: Sequence[Test], share: float) -> set[str]:
    """Returns the names of the tests of one file that a sample has."""
    groups: dict[str, list[Test]] = {}
    for test in sorted(tests, key=lambda test: test.order):
        groups.setdefault(test.group, []).append(test)
    names = {test.name for group in groups.values() for test in _of_group(group, min(share, 1))}
    return names or {min(tests, key=lambda test: test.order).name}


def _of_group(group: Sequence[Test], share: float) -> list[Test]:
    count = max(1, round(share * len(group)))
    kept = [test for test in group if test.is_kept]
    others = [test for test in group if not test.is_kept and not test.is_slow]
    some = kept + others[: max(0, count - len(kept))]
    for name in _sections(group):
        values = {test.parameters.get(name) for test in some}
        for test in others:
            value = test.parameters.get(name)
            if value not in values:
                values.add(value)
                some.append(test)
    return some


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
