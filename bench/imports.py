"""What an installed torch_openreg costs a program that imports torch and never uses it."""

import functools
import os
import sys
import time
from dataclasses import dataclass

from bench.measure import Benchmark, Effort, Ratios, Target, UnmeasurableError

__all__ = ["benchmarks"]

_UNIT = "without the plug-in"
_PROGRAM = "import os, torch; os._exit(0 if hasattr(torch, 'openreg') == {expected} else 3)"


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        Benchmark(
            "import: torch, processor time",
            _UNIT,
            lambda effort: Ratios(
                [with_.processor / without.processor for with_, without in _pairs(effort)]
            ),
            Target(1.05),
        ),
        Benchmark(
            "import: torch, wall time",
            _UNIT,
            lambda effort: Ratios([with_.wall / without.wall for with_, without in _pairs(effort)]),
            Target(1.05),
        ),
    ]


@dataclass(frozen=True)
class _Seconds:
    """The life of one process; ``processor`` is user and system time."""

    wall: float
    processor: float


@functools.cache
def _pairs(effort: Effort) -> list[tuple[_Seconds, _Seconds]]:
    """Returns the times of ``import torch`` with and without the plug-in."""
    pairs = []
    for repetition in range(effort.process_pairs + 1):
        # The order alternates, so that neither has an advantage.
        order = (True, False) if repetition % 2 else (False, True)
        seconds = {autoload: _import_torch(autoload) for autoload in order}
        pairs.append((seconds[True], seconds[False]))
    return pairs[1:]  # the first one fills the file cache


def _import_torch(autoload: bool) -> _Seconds:
    program = _PROGRAM.format(expected=autoload)
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    start = time.perf_counter()
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", program], environment)
    _, status, usage = os.wait4(process, 0)
    wall = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise UnmeasurableError(
            "torch_openreg must be installed, for `import torch` to find it by its entry point"
        )
    return _Seconds(wall, usage.ru_utime + usage.ru_stime)
