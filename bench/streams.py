"""Memory allocation, events and streams.

Where the CPU has nothing to compare with, the unit is a small op of the CPU: an addition of
two tensors of one element.
"""

from collections.abc import Callable

import torch

from bench.measure import (
    Benchmark,
    Effort,
    Names,
    Ratios,
    compare_apart,
    on_cpu,
    on_openreg,
    versus_cpu,
)
from bench.ops import pair

__all__ = ["benchmarks"]

_MIB = 1024**2


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        versus_cpu("memory: empty and free, 1 element", "empty(size)", _allocation(4)),
        versus_cpu("memory: empty and free, 1 MiB", "empty(size)", _allocation(_MIB)),
        versus_cpu("memory: empty and free, 64 MiB", "empty(size)", _allocation(64 * _MIB)),
        _versus_small_op("event: record, call returns", "event.record(stream)", waits=False),
        _versus_small_op("event: record, until done", "event.record(stream)"),
        _versus_small_op(
            "event: record, other stream waits", "event.record(stream); other.wait_event(event)"
        ),
        _versus_small_op("event: record, synchronize", "event.record(stream); event.synchronize()"),
        _versus_small_op("event: query", "event.query()"),
        _versus_small_op("stream: synchronize, idle", "stream.synchronize()"),
        _versus_small_op("stream: round trip of one op", "x + y; stream.synchronize()"),
        _versus_small_op("stream: item()", "x.item()"),
        _versus_small_op("stream: current_stream", "current_stream()"),
    ]


def _allocation(size: int) -> Callable[[torch.device], Names]:
    def setup(device: torch.device) -> Names:
        def empty(size: int) -> None:
            torch.empty(size, dtype=torch.uint8, device=device)

        return {"empty": empty, "size": size}

    return setup


def _stream_names(device: torch.device) -> Names:
    return pair(1)(device) | {
        "stream": torch.accelerator.current_stream(device),
        "other": torch.Stream(device),
        "event": torch.Event(device),
        "current_stream": torch.accelerator.current_stream,
    }


def _versus_small_op(name: str, statement: str, *, waits: bool = True) -> Benchmark:
    def measure(effort: Effort) -> Ratios:
        return compare_apart(
            lambda: on_openreg(statement, _stream_names, waits=waits),
            lambda: on_cpu("x + y", pair(1)),
            effort,
        )

    return Benchmark(name, "cpu small ops", measure)
