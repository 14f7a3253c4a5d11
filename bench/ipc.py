"""Hand-overs: a tensor sent to another process and answered, relative to a tensor of the CPU.

A CPU tensor is in shared memory before it is sent, so neither side copies.
"""

from collections.abc import Callable

import torch
import torch.multiprocessing

from bench.measure import (
    CPU,
    OPENREG,
    Benchmark,
    Effort,
    Names,
    Ratios,
    Subject,
    compare,
)

__all__ = ["benchmarks"]

_KIB = 1024
_MIB = 1024**2


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        Benchmark(f"ipc: queue there and back, {name}", "cpu", _hand_over(size))
        for name, size in (("1 KiB", _KIB), ("64 MiB", 64 * _MIB))
    ]


def _hand_over(size: int) -> Callable[[Effort], Ratios]:
    def measure(effort: Effort) -> Ratios:
        context = torch.multiprocessing.get_context("spawn")
        requests, replies = context.SimpleQueue(), context.SimpleQueue()
        receiver = context.Process(target=_receive, args=(requests, replies), daemon=True)
        receiver.start()

        def subject(device: torch.device) -> Subject:
            names: Names = {
                "put": requests.put,
                "get": replies.get,
                "tensor": torch.ones(size, dtype=torch.uint8).to(device).share_memory_(),
            }
            return Subject("put(tensor); get()", names, device)

        try:
            return compare(subject(OPENREG), subject(CPU), effort)
        finally:
            requests.put(None)
            receiver.join()

    return measure


def _receive(
    requests: "torch.multiprocessing.SimpleQueue", replies: "torch.multiprocessing.SimpleQueue"
) -> None:
    """Reads one element of each tensor that arrives, and answers."""
    while (tensor := requests.get()) is not None:
        replies.put(tensor[-1].item())
        del tensor
