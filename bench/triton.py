"""Kernels of Triton on openreg, against torch's operators on the CPU."""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from bench.measure import (
    CPU,
    Benchmark,
    Effort,
    Names,
    Ratios,
    Target,
    UnmeasurableError,
    compare_apart,
    on_cpu,
    on_openreg,
)

__all__ = ["benchmarks"]

_Setup: TypeAlias = Callable[[torch.device], Names]

_MILLION = 1_000_000


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        _row("add, 1M elements", "torch.add(x, y, out=out)", "add(x, y, out)", _add, 1.3),
        _row("softmax, 4096x1024", "x.softmax(1)", "softmax(x, out)", _softmax, 1.2),
        _row("matmul, 512, float32", "a @ b", "matmul(a, b, out)", _matmul, 1.3),
        Benchmark("triton: launch, call returns", "us", _launch, Target(12)),
    ]


def _row(name: str, operator: str, kernel: str, setup: _Setup, target: float) -> Benchmark:
    def measure(effort: Effort) -> Ratios:
        _check()
        return compare_apart(
            lambda: on_openreg(kernel, setup), lambda: on_cpu(operator, setup), effort
        )

    return Benchmark(f"triton: {name}", "cpu", measure, Target(target))


def _check() -> None:
    if importlib.util.find_spec("triton") is None:
        raise UnmeasurableError("Triton is not installed")


@functools.cache
def _kernels() -> dict[str, Any]:
    """Returns the kernels, which are those of the tests."""
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent.parent / "test"))
    from extras.triton import kernels

    return vars(kernels)


def _add(device: torch.device) -> Names:
    torch.manual_seed(0)
    names: Names = {key: torch.randn(_MILLION).to(device) for key in ("x", "y", "out")}
    if device != CPU:
        kernel = _kernels()["add_kernel"]
        grid = (-(-_MILLION // 1024),)
        names["add"] = lambda x, y, out: kernel[grid](x, y, out, _MILLION, BLOCK=1024)
    return {**names, "torch": torch}


def _softmax(device: torch.device) -> Names:
    torch.manual_seed(0)
    x = torch.randn(4096, 1024).to(device)
    names: Names = {"x": x, "out": torch.empty_like(x)}
    if device != CPU:
        kernel = _kernels()["row_softmax"]
        names["softmax"] = lambda x, out: kernel[(4096,)](x, out, 1024, BLOCK=1024)
    return names


def _matmul(device: torch.device) -> Names:
    torch.manual_seed(0)
    names: Names = {key: torch.randn(512, 512).to(device) for key in ("a", "b", "out")}
    if device != CPU:
        kernel = _kernels()["matmul_kernel"]
        sizes, tile = (512, 512, 512), {"BM": 128, "BN": 64, "BK": 64}
        names["matmul"] = lambda a, b, out: kernel[(4, 8)](a, b, out, *sizes, **tile)
    return names


def _launch(effort: Effort) -> Ratios:
    """Returns the microseconds after which a launch of one program returns."""
    _check()

    def small(device: torch.device) -> Names:
        x = torch.ones(1, device=device)
        kernel = _kernels()["add_kernel"]
        return {"x": x, "add": lambda x: kernel[(1,)](x, x, x, 1, BLOCK=16)}

    subject = on_openreg("add(x)", small, waits=False)
    subject.seconds(1)  # compiles
    count = subject.fitting_count(effort.sample_seconds)
    return Ratios([subject.seconds(count) / count * 1e6 for _ in range(effort.repetitions)])
