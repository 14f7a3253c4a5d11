"""Kernels of Triton on openreg, against torch's operators on the CPU."""

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

from bench.measure import (
    CPU,
    OPENREG,
    Benchmark,
    Effort,
    Names,
    Ratios,
    Subject,
    Target,
    UnmeasurableError,
    compare_apart,
    on_cpu,
    on_openreg,
)

__all__ = ["benchmarks"]

_Setup: TypeAlias = Callable[[torch.device], Names]

_MILLION = 1_000_000
_TESTS = Path(__file__).parent.parent / "test"


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    norm = "torch.nn.functional.layer_norm(x, (1024,), w, b)"
    attention = "torch.nn.functional.scaled_dot_product_attention(q, k, v)"
    return [
        _row("add, 1M elements", "torch.add(x, y, out=out)", "add(x, y, out)", _add, 1.3),
        _row("softmax, 4096x1024", "x.softmax(1)", "softmax(x, out)", _softmax, 1.2),
        _row("layer norm, 4096x1024", norm, "norm(x, w, b, out)", _norm, 1.5),
        _row("attention, 2x8x512x64", attention, "attention(q, k, v, out)", _attention, 2.0),
        _row("matmul, 512, float32", "a @ b", "matmul(a, b, out)", _matmul(torch.float32), 1.3),
        _narrow("matmul, 512, float16", torch.float16),
        _narrow("matmul, 512, bfloat16", torch.bfloat16),
        _checks("add, 1M elements", "add(x, y, out)", _add),
        _checks("softmax, 4096x1024", "softmax(x, out)", _softmax),
        _checks("matmul, 512, float32", "matmul(a, b, out)", _matmul(torch.float32)),
        Benchmark("triton: launch, call returns", "us", _launch, Target(12)),
        Benchmark(
            "triton: first call in a new process",
            "s",
            functools.partial(_first, False),
            Target(0.8),
        ),
        Benchmark(
            "triton: the same, from the cache", "s", functools.partial(_first, True), Target(0.15)
        ),
    ]


def _row(name: str, operator: str, kernel: str, setup: _Setup, target: float) -> Benchmark:
    return _comparison(
        name,
        "cpu",
        lambda: on_openreg(kernel, setup),
        lambda: on_cpu(operator, setup),
        target,
    )


def _narrow(name: str, dtype: torch.dtype) -> Benchmark:
    """Returns a row that compares with numbers of 32 bits."""
    statement = "matmul(a, b, out)"
    return _comparison(
        name,
        "float32",
        lambda: on_openreg(statement, _matmul(dtype)),
        lambda: on_openreg(statement, _matmul(torch.float32)),
        1.2,
    )


def _checks(name: str, statement: str, setup: _Setup) -> Benchmark:
    """Returns a row that compares with a kernel whose accesses are not checked."""

    def unchecked() -> Subject:
        os.environ["OPENREG_TRITON_CHECK"] = "0"  # of the reference's process
        return on_openreg(statement, setup)

    return _comparison(
        f"checks, {name}", "no checks", lambda: on_openreg(statement, setup), unchecked, 1.1
    )


def _comparison(
    name: str,
    unit: str,
    subject: Callable[[], Subject],
    reference: Callable[[], Subject],
    target: float,
) -> Benchmark:
    def measure(effort: Effort) -> Ratios:
        _check()
        return compare_apart(subject, reference, effort)

    return Benchmark(f"triton: {name}", unit, measure, Target(target))


def _check() -> None:
    if importlib.util.find_spec("triton") is None:
        raise UnmeasurableError("Triton is not installed")


@functools.cache
def _kernels() -> dict[str, Any]:
    """Returns the kernels, which are those of the tests."""
    sys.path.insert(0, str(_TESTS))
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


def _norm(device: torch.device) -> Names:
    torch.manual_seed(0)
    x = torch.randn(4096, 1024).to(device)
    parameters: Names = {key: torch.randn(1024).to(device) for key in ("w", "b")}
    names: Names = {"x": x, **parameters, "out": torch.empty_like(x), "torch": torch}
    if device != CPU:
        kernel = _kernels()["row_norm"]
        names["norm"] = lambda *tensors: kernel[(4096,)](*tensors, 1024, 1e-5, BLOCK=1024)
    return names


def _attention(device: torch.device) -> Names:
    torch.manual_seed(0)
    keys = ("q", "k", "v", "out")
    names: Names = {key: torch.randn(2, 8, 512, 64).to(device) for key in keys}
    if device != CPU:
        kernel = _kernels()["attention_kernel"]
        tiles = {"M": 64, "N": 64, "D": 64, "CAUSAL": False}
        names["attention"] = lambda *tensors: kernel[(8, 16)](*tensors, 512, 0.125, **tiles)
    return {**names, "torch": torch}


def _matmul(dtype: torch.dtype) -> _Setup:
    def setup(device: torch.device) -> Names:
        torch.manual_seed(0)
        names: Names = {key: torch.randn(512, 512).to(device, dtype) for key in ("a", "b")}
        names["out"] = torch.empty(512, 512, device=device)
        if device != CPU:
            kernel = _kernels()["matmul_kernel"]
            sizes, tile = (512, 512, 512), {"BM": 128, "BN": 64, "BK": 64}
            names["matmul"] = lambda a, b, out: kernel[(4, 8)](a, b, out, *sizes, **tile)
        return names

    return setup


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


# Prints the seconds of the processor, with those of the compiler, behind all imports.
_FIRST = """
import os, sys, torch, triton
sys.path.insert(0, {tests!r})
from extras.triton.kernels import add_kernel
x = torch.ones(1000, device={device!r})
torch.accelerator.synchronize()
before = sum(os.times()[:4])
add_kernel[(4,)](x, x, x, 1000, BLOCK=256)
torch.accelerator.synchronize()
print(sum(os.times()[:4]) - before)
"""


def _first(is_cached: bool, effort: Effort) -> Ratios:
    """Returns the seconds of the processor that the first launch of a kernel takes."""
    _check()
    program = _FIRST.format(tests=str(_TESTS), device=str(OPENREG))
    values = []
    for _ in range(effort.process_pairs):
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(1 + is_cached):
                result = subprocess.run(
                    [sys.executable, "-c", program],
                    env=os.environ | {"TRITON_CACHE_DIR": folder},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
        values.append(float(result.stdout))
    return Ratios(values)
