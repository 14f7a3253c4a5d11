"""Operators: small ones, which show the cost of a launch, and large ones, which should not."""

import time
from collections.abc import Callable

import torch

from bench.measure import OPENREG, Benchmark, Effort, Names, Ratios, Target, versus_cpu

__all__ = ["benchmarks", "launch_share", "pair"]

_MILLION = 1_000_000
_CHAIN_LENGTH = 1000
_LAUNCH_SIZE = 2048
_VIEW = Target(1.3)
_LARGE = Target(1.1)
_IN_PLACE = Target(1.3)


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    chain = f"z = x\nfor _ in range({_CHAIN_LENGTH}):\n    z = z + y"
    return [
        versus_cpu(
            "op: add, 1 element, call returns",
            "x + y",
            pair(1),
            waits=False,
            target=Target(1.25),
        ),
        versus_cpu("op: add, 1 element, until done", "x + y", pair(1), target=Target(1.3)),
        versus_cpu("op: add_, 1 element, until done", "x.add_(y)", pair(1), target=_IN_PLACE),
        versus_cpu("op: fill_, 1 element, until done", "x.fill_(1)", pair(1), target=_IN_PLACE),
        versus_cpu(
            f"op: {_CHAIN_LENGTH} dependent adds, 1 element", chain, pair(1), target=Target(1.3)
        ),
        versus_cpu("op: view", "x.view(16, 4)", pair(64), target=_VIEW),
        versus_cpu("op: slice", "x[8:16]", pair(64), target=_VIEW),
        versus_cpu("op: transpose", "x.t()", pair(8, 8), target=_VIEW),
        versus_cpu("op: add, 1M elements", "x + y", pair(_MILLION), target=Target(0.9)),
        versus_cpu("op: add_, 1M elements", "x.add_(y)", pair(_MILLION), target=_LARGE),
        versus_cpu("op: add out=, 1M elements", "add(x, y, out=z)", pair(_MILLION)),
        versus_cpu(
            "op: layer_norm 1024x1024",
            "torch.layer_norm(x, (1024,))",
            pair(1024, 1024),
            target=_LARGE,
        ),
        versus_cpu("op: sum, 1M elements", "x.sum()", pair(_MILLION)),
        versus_cpu("op: matmul 512x512", "x @ y", pair(512, 512), target=_LARGE),
        versus_cpu("op: matmul 2048x2048", "x @ y", pair(_LAUNCH_SIZE, _LAUNCH_SIZE)),
        Benchmark("op: matmul 2048x2048, call returns", "until done", launch_share, Target(0.02)),
    ]


def pair(*shape: int) -> Callable[[torch.device], Names]:
    """Returns a setup that makes tensors x, y and z, the function add, and torch."""

    def setup(device: torch.device) -> Names:
        generator = torch.Generator().manual_seed(0)
        x, y, z = (torch.randn(shape, generator=generator).to(device) for _ in range(3))
        return {"x": x, "y": y, "z": z, "add": torch.add, "torch": torch}

    return setup


def launch_share(effort: Effort) -> Ratios:
    """Returns when a large matmul's call returns, as a fraction of when it is done."""
    x, y = (torch.randn(_LAUNCH_SIZE, _LAUNCH_SIZE).to(OPENREG) for _ in range(2))
    shares = []
    for _ in range(effort.repetitions + 1):
        torch.accelerator.synchronize(OPENREG)
        start = time.perf_counter()
        z = x @ y
        returned = time.perf_counter()
        torch.accelerator.synchronize(OPENREG)
        shares.append((returned - start) / (time.perf_counter() - start))
        del z
    return Ratios(shares[1:])  # the first one warms up
