"""How a ratio is measured.

Two subjects take turns, so that whatever else the machine does affects both. Each turn runs a
subject's statement as often as fills a sample. One repetition gives one ratio, of two samples
taken right after each other; the median of all repetitions is the result, and the smallest and
largest show how far to trust it.

If the CPU is the reference, each device has a separate process, like a program that computes on one
of them: OpenMP treats threads otherwise in a process that has more of them than processors.
"""

import multiprocessing
import statistics
import time
import timeit
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeAlias, TypeVar

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
    "Timed",
    "UnmeasurableError",
    "apart",
    "compare",
    "compare_apart",
    "in_child",
    "on_cpu",
    "on_openreg",
    "versus_cpu",
]

CPU = torch.device("cpu")
OPENREG = torch.device(DEVICE_TYPE, 0)  # or cuda, with OPENREG_DEVICE_TYPE=cuda

# The names that a statement may use.
Names: TypeAlias = dict[str, object]

_Result = TypeVar("_Result")

# Time for threads of the other subject to stop spinning before a sample starts.
_SETTLE_SECONDS = 0.02

# The first executions may compile, learn or capture, which later ones reuse.
_WARM_UPS = 3

# Calls per burst if only the calls are timed: well below the capacity of a stream's queue, so that
# no call waits for space.
_BURST = 200


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        repetitions: number of ratios per benchmark.
        sample_seconds: length that each sample is stretched to.
        process_pairs: number of ratios if each sample is a separate process.
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
    """The reason why a benchmark cannot run on this machine."""


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
        name: The measured quantity; ``--only`` matches against it.
        unit: The meaning of 1.
        measure: takes the measurement; may raise UnmeasurableError.
        target: The project's target; None if it has none.
    """

    name: str
    unit: str
    measure: Callable[[Effort], Ratios]
    target: Target | None = None


@dataclass
class Subject:
    """A statement to be timed.

    Attributes:
        statement: Source text; it can use ``names``, and its assignments are local to a sample.
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
        for _ in range(_WARM_UPS):
            self.seconds(1)
        count = 1
        while (elapsed := self.seconds(count)) < sample_seconds / 4:
            count *= 4
        return max(1, round(count * sample_seconds / elapsed))

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


class Timed(Protocol):
    """What can be compared; see Subject for the methods."""

    def seconds(self, count: int) -> float:
        """Returns the duration of ``count`` executions."""

    def fitting_count(self, sample_seconds: float) -> int:
        """Returns how many executions fill a sample."""


def compare(subject: Timed, reference: Timed, effort: Effort) -> Ratios:
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


def compare_apart(
    make_subject: Callable[[], Subject], make_reference: Callable[[], Subject], effort: Effort
) -> Ratios:
    """Returns the same for two subjects in separate processes; see apart()."""
    with apart(make_subject) as subject, apart(make_reference) as reference:
        return compare(subject, reference, effort)


@contextmanager
def apart(make: Callable[[], Subject]) -> Generator[Timed, None, None]:
    """Makes a subject in a child of this process, which must not have used a device or computed."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs, make))
    child.start()
    theirs.close()
    try:
        yield _Apart(ours)
    finally:
        child.kill()
        child.join()


class _Apart:
    """A subject in another process."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe

    def seconds(self, count: int) -> float:
        return self._call(Subject.seconds, count)

    def fitting_count(self, sample_seconds: float) -> int:
        return self._call(Subject.fitting_count, sample_seconds)

    def _call(self, method: Callable[..., _Result], argument: float) -> _Result:
        with suppress(BrokenPipeError):  # it has sent an error and ended
            self._pipe.send((method, argument))
        return _received(self._pipe)


def _serve(pipe: "Connection[Any, Any]", make: Callable[[], Subject]) -> None:
    try:
        subject = make()
        while True:
            method, argument = pipe.recv()
            pipe.send((method(subject, argument), None))
    except Exception as error:
        pipe.send((None, error))


def in_child(function: Callable[[], _Result]) -> _Result:
    """Returns the result of a function in a child of this process, which is not changed."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def run() -> None:
        try:
            theirs.send((function(), None))
        except Exception as error:
            theirs.send((None, error))

    child = context.Process(target=run)
    child.start()
    theirs.close()
    try:
        return _received(ours)
    finally:
        child.join()


def _received(pipe: "Connection[Any, Any]") -> Any:
    result, error = pipe.recv()
    if error is not None:
        raise error
    return result


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
        return compare_apart(
            lambda: on_openreg(statement, setup, waits=waits),
            lambda: on_cpu(statement, setup),
            effort,
        )

    return Benchmark(name, "cpu", measure, target)
