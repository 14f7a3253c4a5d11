"""Compiled functions: Inductor's kernels on openreg, against Inductor on the CPU and eager mode."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import nn

from bench.measure import (
    CPU,
    OPENREG,
    Benchmark,
    Effort,
    Names,
    Ratios,
    Subject,
    Target,
    Timed,
    apart,
    compare_apart,
    on_cpu,
    on_openreg,
)
from bench.training import make_step, make_transformer_step

__all__ = ["benchmarks"]

_Setup: TypeAlias = Callable[[torch.device], Names]

_CPU = "inductor cpu"
_EAGER = "eager openreg"
_EAGER_CPU = "eager cpu"
_MILLION = 1_000_000
_BLOCKS = 6
# As for training steps in eager mode.
_STRETCH = 10


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        _versus_cpu("kernel, 1M elements", "f(x, y)", _kernel(_MILLION), Target(1.03)),
        Benchmark("compile: launch of a kernel", "us above inductor", _launch, Target(1.5)),
        *_small_graphs("small graph", None, Target(1.15)),
        *_small_graphs("small graph, reduce-overhead", "reduce-overhead", Target(0.7)),
        _versus_cpu("large graph", "f(x)", _graph(512, 512), Target(1.0), stretch=_STRETCH),
        *_training("step of MLP", make_step),
        *_training("step of transformer", make_transformer_step),
        Benchmark("compile: time to compile", _CPU, _compile_time, Target(1.1)),
    ]


def _versus_cpu(
    name: str, statement: str, setup: _Setup, target: Target, *, stretch: float = 1
) -> Benchmark:
    return _row(
        name,
        _CPU,
        lambda: on_openreg(statement, setup),
        lambda: on_cpu(statement, setup),
        target,
        stretch,
    )


def _small_graphs(name: str, mode: str | None, target: Target) -> list[Benchmark]:
    """Returns a row with as many intra-op threads as torch chooses, and one with a single one.

    Nothing in these graphs is large enough for two. But MKL uses two, and the second thread keeps
    polling for work: with two processors, that leaves one for the host and the stream's worker.
    """
    setup = _graph(8, 32, mode)

    def with_one_thread(device: torch.device) -> Names:
        torch.set_num_threads(1)
        return setup(device)

    return [
        _versus_cpu(name, "f(x)", setup, target),
        _versus_cpu(f"{name}, 1 thread", "f(x)", with_one_thread, target),
    ]


def _training(name: str, make: Callable[..., Names]) -> list[Benchmark]:
    """Returns the rows of a step whose model and its backward are compiled.

    On openreg as on the CPU, Inductor's kernels may be slower than those of eager mode.
    """

    def compiled(device: torch.device) -> Names:
        return make(device, torch.compile)

    def openreg() -> Subject:
        return on_openreg("step()", compiled)

    return [
        _row(name, _CPU, openreg, lambda: on_cpu("step()", compiled), Target(1.0), _STRETCH),
        _row(name, _EAGER, openreg, lambda: on_openreg("step()", make), Target(1.0), _STRETCH),
        _row(
            f"{name}, on the CPU",
            _EAGER_CPU,
            lambda: on_cpu("step()", compiled),
            lambda: on_cpu("step()", make),
            None,
            _STRETCH,
        ),
    ]


def _row(
    name: str,
    unit: str,
    subject: Callable[[], Subject],
    reference: Callable[[], Subject],
    target: Target | None,
    stretch: float,
) -> Benchmark:
    def measure(effort: Effort) -> Ratios:
        effort = replace(effort, sample_seconds=stretch * effort.sample_seconds)
        return compare_apart(subject, reference, effort)

    return Benchmark(f"compile: {name}", unit, measure, target)


def _kernel(size: int) -> _Setup:
    """Makes f(x, y), which runs one kernel that reads x and writes y, and allocates nothing."""

    def make(device: torch.device) -> Names:
        def function(x: torch.Tensor, y: torch.Tensor) -> None:
            y.copy_((x.sigmoid() * x + 1).relu())

        torch.manual_seed(0)
        x, y = (torch.randn(size).to(device) for _ in range(2))
        return {"f": torch.compile(function), "x": x, "y": y}

    return make


def _graph(rows: int, width: int, mode: str | None = None) -> _Setup:
    """Makes f(x), inference of a chain of norms, linear layers and activations.

    The mode is that on openreg; the CPU has the default one, as others do not make it faster.
    """

    def make(device: torch.device) -> Names:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(_BLOCKS):
            layers += [nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()]
        model = nn.Sequential(*layers).to(device).requires_grad_(False)
        function = torch.compile(model, mode=None if device == CPU else mode)
        return {"f": function, "x": torch.randn(rows, width).to(device)}

    return make


def _launch(effort: Effort) -> Ratios:
    """Returns by how many microseconds calls of a kernel with one element return later."""
    with (
        apart(lambda: on_openreg("f(x, y)", _kernel(1), waits=False)) as subject,
        apart(lambda: on_cpu("f(x, y)", _kernel(1))) as reference,
    ):
        counts = {each: each.fitting_count(effort.sample_seconds) for each in (subject, reference)}

        def microseconds(each: Timed) -> float:
            return each.seconds(counts[each]) / counts[each] * 1e6

        return Ratios(
            [microseconds(subject) - microseconds(reference) for _ in range(effort.repetitions)]
        )


def _compile_time(effort: Effort) -> Ratios:
    """Returns the ratios of first calls, with empty caches of Inductor's on the disk."""
    for device in (CPU, OPENREG):
        _seconds_to_compile(device)  # the first one imports the compiler
    pairs = effort.process_pairs // 3  # each is a call of the C++ compiler per kernel
    return Ratios([_seconds_to_compile(OPENREG) / _seconds_to_compile(CPU) for _ in range(pairs)])


def _seconds_to_compile(device: torch.device) -> float:
    from torch._inductor.utils import fresh_cache

    torch.compiler.reset()
    names = make_step(device, torch.compile)
    with fresh_cache():
        start = time.perf_counter()
        exec("step()", names)
        torch.accelerator.synchronize(OPENREG)
        return time.perf_counter() - start
