"""What tracing costs: when it is off, when it has been on before, and while it is on.

Profiling changes a process permanently, so each sample of the first row is a separate process. Run
as ``python -m bench.profiler PROFILES COUNT``, this module is that process: it prints the seconds
of COUNT additions.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from bench.measure import (
    OPENREG,
    Benchmark,
    Effort,
    Ratios,
    Subject,
    Target,
    UnmeasurableError,
)
from bench.ops import pair

__all__ = ["benchmarks"]

_COUNT = 100_000
_SAMPLES = 9
_SESSION_COUNT = 2000


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        Benchmark(
            "profiler: add, 1 element, after a session",
            "no session before",
            _after_a_session,
            Target(1.05),
        ),
        Benchmark(
            "profiler: add, 1 element, while collecting", "not collecting", _while_collecting
        ),
        Benchmark("profiler: add, 1 element, torch.profiler", "not profiling", _while_profiling),
    ]


def _after_a_session(effort: Effort) -> Ratios:
    ratios = []
    for repetition in range(effort.process_pairs + 1):
        # The order alternates, so that neither has an advantage.
        order = (True, False) if repetition % 2 else (False, True)
        seconds = {profiles: _run(profiles) for profiles in order}
        ratios.append(seconds[True] / seconds[False])
    return Ratios(ratios[1:])  # the first one fills the file cache


def _run(profiles: bool) -> float:
    completed = subprocess.run(
        [sys.executable, "-m", "bench.profiler", str(int(profiles)), str(_COUNT // _SAMPLES)],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if completed.returncode != 0:
        raise UnmeasurableError("the process that is measured failed")
    return float(completed.stdout.split()[-1])


def _while_collecting(effort: Effort) -> Ratios:
    def collect(add: Callable[[], float]) -> float:
        with torch.openreg.profiler.collect():
            return add()

    return _while(collect, effort)


def _while_profiling(effort: Effort) -> Ratios:
    def session(add: Callable[[], float]) -> float:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]):
            return add()

    return _while(session, effort)


def _while(session: Callable[[Callable[[], float]], float], effort: Effort) -> Ratios:
    subject = _additions()

    def add() -> float:
        return subject.seconds(_SESSION_COUNT)

    session(add)
    return Ratios([session(add) / add() for _ in range(effort.repetitions)])


def _additions() -> Subject:
    return Subject("x + y", pair(1)(OPENREG), OPENREG)


def _main(profiles: bool, count: int) -> None:
    subject = _additions()
    subject.seconds(count)
    if profiles:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]):
            subject.seconds(_SESSION_COUNT)
    print(statistics.median(subject.seconds(count) for _ in range(_SAMPLES)))


if __name__ == "__main__":
    _main(sys.argv[1] == "1", int(sys.argv[2]))
