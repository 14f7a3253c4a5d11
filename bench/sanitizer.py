"""The cost of the sanitizer of streams while it is on: host time, and memory."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from bench.measure import (
    OPENREG,
    Benchmark,
    Effort,
    Names,
    Ratios,
    Subject,
    Target,
    UnmeasurableError,
    compare,
    on_openreg,
)
from bench.ops import pair
from bench.training import make_demo, make_step
from torch_openreg.extras.sanitizer import sanitizer

__all__ = ["benchmarks"]

_LAUNCH = Target(2)
_STEP = Target(1.5)
_BYTES = Target(200)
_STRETCH = 10
_COPIED_BYTES = 64 * 1024
_LAUNCHES = 3000  # of one allocation, fewer than the stored accesses


@dataclass
class _Checked(Subject):
    """A statement that runs with the sanitizer on."""

    def seconds(self, count: int) -> float:
        with sanitizer.check("collect"):
            return super().seconds(count)


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        _row("add_, 1 element, call returns", "x.add_(y)", pair(1), _LAUNCH, waits=False),
        _row("add, 1 element, call returns", "x + y", pair(1), _LAUNCH, waits=False),
        _row("index_select, call returns", "x.index_select(0, i)", _index, _LAUNCH, waits=False),
        _row("empty and free, 1 element", "x.new_empty(1)", pair(1)),
        _row("pinned copy of 64 KiB, until done", "x.copy_(p, non_blocking=True)", _pinned),
        _row("step of MLP", "step()", make_step, _STEP, stretch=_STRETCH),
        _row("epoch of the demo", "run_epoch(order)", make_demo, _STEP, stretch=_STRETCH),
        Benchmark("sanitizer: bytes per access remembered", "bytes", _bytes_per_access, _BYTES),
    ]


def _row(
    name: str,
    statement: str,
    setup: Callable[[torch.device], Names],
    target: Target | None = None,
    *,
    waits: bool = True,
    stretch: float = 1,
) -> Benchmark:
    def measure(effort: Effort) -> Ratios:
        effort = replace(effort, sample_seconds=stretch * effort.sample_seconds)
        off = on_openreg(statement, setup, waits=waits)
        on = _Checked(statement, off.names, OPENREG, waits)
        on.seconds(1)  # the first time takes longer
        return compare(on, off, effort)

    return Benchmark(f"sanitizer: {name}", "sanitizer off", measure, target)


def _index(device: torch.device) -> Names:
    return {"x": torch.ones(64, 8, device=device), "i": torch.arange(4, device=device)}


def _pinned(device: torch.device) -> Names:
    pinned = torch.ones(_COPIED_BYTES, dtype=torch.uint8).pin_memory()
    return {"x": pinned.to(device), "p": pinned}


def _bytes_per_access(effort: Effort) -> Ratios:
    views = torch.zeros(2 * _LAUNCHES, device=OPENREG)[::2].split(1)
    values = []
    for _ in range(effort.repetitions):
        with sanitizer.check("collect"):
            views[0].fill_(1)
            before = _allocated_bytes()
            for view in views:
                view.fill_(1)
            values.append((_allocated_bytes() - before) / len(views))
        torch.accelerator.synchronize(OPENREG)
    return Ratios(values)


def _allocated_bytes() -> int:
    """What malloc has given out to the main thread."""

    class Info(ctypes.Structure):
        # The fields of struct mallinfo2, in order; the last but two is the memory in use.
        _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        raise UnmeasurableError("this C library has no mallinfo2") from None
    mallinfo.restype = Info
    return int(mallinfo().h)
