"""How a ratio is measured.

Two subjects take turns, so that whatever else the machine does affects both. Each turn runs a
subject's statement as often as fills a sample. One repetition gives one ratio, of two samples
taken right after each other; the median of all repetitions is the result, and the smallest and
largest show how far to trust it.
"""

import statistics
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = [
    "CPU",
    "FULL",
    "OPENREG",
    "QUICK",
    "Benchmark",
    "Effort",
    "Names",
    "Ratios",
    "Subject",
    "Target",
    "UnmeasurableError",
    "compare",
    "on_cpu",
    "on_openreg",
    "versus_cpu",
]

CPU = torch.device("cpu")
OPENREG = torch.device(DEVICE_TYPE, 0)  # or cuda, with OPENREG_DEVICE_TYPE=cuda

# What a statement may refer to.
Names: TypeAlias = dict[str, object]

# Time for threads of the other subject to stop spinning before a sample starts.
_SETTLE_SECONDS = 0.003

# Calls per burst if only the calls are timed: well below what a stream's queue holds, so that
# no call waits for room.
_BURST = 200


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        repetitions: number of ratios per benchmark.
        sample_seconds: length that each sample is stretched to.
        process_pairs: number of ratios where each sample is a process of its own.
    """

    repetitions: int
    sample_seconds: float
    process_pairs: int


FULL = Effort(repetitions=15, sample_seconds=0.05, process_pairs=15)
QUICK = Effort(repetitions=5, sample_seconds=0.01, process_pairs=3)


@dataclass(frozen=True)
class Target:
    """A bound for a median."""

    bound: float
    is_upper: bool = True

    def is_met_by(self, value: float) -> bool:
        """Whether the value keeps the bound."""
        return value <= self.bound if self.is_upper else value >= self.bound

    def __str__(self) -> str:
        return f"{'<=' if self.is_upper else '>='} {self.bound:g}"


class UnmeasurableError(Exception):
    """Says why a benchmark cannot run on this machine."""


@dataclass(frozen=True)
class Ratios:
    """The outcome of a benchmark: one value per repetition."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        """The result."""
        return statistics.median(self.values)

    @property
    def smallest(self) -> float:
        """The smallest value of any repetition."""
        return min(self.values)

    @property
    def largest(self) -> float:
        """The largest value of any repetition."""
        return max(self.values)

    def inverted(self) -> "Ratios":
        """Returns the ratios of the rates instead of those of the times."""
        return Ratios([1 / value for value in self.values])


@dataclass(frozen=True)
class Benchmark:
    """A row of the table.

    Attributes:
        name: what is measured; ``--only`` matches against it.
        unit: what 1 stands for.
        measure: takes the measurement; may raise UnmeasurableError.
        target: what the project promises, None if it promises nothing.
    """

    name: str
    unit: str
    measure: Callable[[Effort], Ratios]
    target: Target | None = None


@dataclass
class Subject:
    """A statement to be timed.

    Attributes:
        statement: source text; it sees ``names``, and what it assigns is local to a sample.
        names: the statement's global names.
        device: what to synchronize with before a sample starts and, if ``waits``, ends.
        waits: whether the time until the work is done counts, or only that of the calls.
    """

    statement: str
    names: Names
    device: torch.device
    waits: bool = True
    _timer: timeit.Timer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._timer = timeit.Timer(self.statement, globals=self.names)

    def seconds(self, count: int) -> float:
        """Returns the duration of ``count`` executions, with garbage collection switched off."""
        self._synchronize()
        if self.waits:
            start = time.perf_counter()
            self._timer.timeit(count)
            self._synchronize()
            return time.perf_counter() - start
        elapsed = 0.0
        while count > 0:
            elapsed += self._timer.timeit(min(count, _BURST))
            self._synchronize()
            count -= _BURST
        return elapsed

    def fitting_count(self, sample_seconds: float) -> int:
        """Returns how many executions fill a sample. Warms up by the way."""
        count = 1
        while (elapsed := self.seconds(count)) < sample_seconds / 4:
            count *= 4
        return max(1, round(count * sample_seconds / elapsed))

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


def compare(subject: Subject, reference: Subject, effort: Effort) -> Ratios:
    """Returns the subject's time per execution as multiples of the reference's."""
    turns = [(each, each.fitting_count(effort.sample_seconds)) for each in (subject, reference)]
    ratios = []
    for _ in range(effort.repetitions):
        seconds = {}
        for each, count in turns:
            time.sleep(_SETTLE_SECONDS)
            seconds[id(each)] = each.seconds(count) / count
        ratios.append(seconds[id(subject)] / seconds[id(reference)])
        turns.reverse()
    return Ratios(ratios)


def on_openreg(
    statement: str, setup: Callable[[torch.device], Names], *, waits: bool = True
) -> Subject:
    """Returns a statement on openreg; ``setup`` makes its names."""
    return Subject(statement, setup(OPENREG), OPENREG, waits)


def on_cpu(statement: str, setup: Callable[[torch.device], Names]) -> Subject:
    """Returns a statement on the CPU; ``setup`` makes its names."""
    return Subject(statement, setup(CPU), CPU)


def versus_cpu(
    name: str,
    statement: str,
    setup: Callable[[torch.device], Names],
    *,
    waits: bool = True,
    stretch: float = 1,
    target: Target | None = None,
) -> Benchmark:
    """Returns a benchmark of the same statement on openreg and on the CPU.

    Args:
        name: the benchmark's name.
        statement: source text.
        setup: makes the statement's names on a device.
        waits: whether the time until the work is done counts, or only that of the calls.
        stretch: how many times longer than usual a sample is.
        target: the benchmark's target.
    """

    def measure(effort: Effort) -> Ratios:
        effort = replace(effort, sample_seconds=stretch * effort.sample_seconds)
        return compare(on_openreg(statement, setup, waits=waits), on_cpu(statement, setup), effort)

    return Benchmark(name, "cpu", measure, target)
