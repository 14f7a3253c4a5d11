"""The growth of costs: a unit's cost in large problems, against small ones and the CPU.

A unit is a tensor, a kernel, a node or whatever there are many of. Where cost is linear, a unit
costs the same in any size; a cost that grows with the square shows as the ratio of the sizes. Each
cost is measured in a separate process, so that no size uses memory or caches of another one.
"""

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

import torch_openreg
from bench.measure import CPU, OPENREG, Benchmark, Effort, Ratios, Target, in_child
from torch_openreg.extras.profiler import profiler
from torch_openreg.extras.sanitizer import sanitizer

__all__ = ["CASES", "Case", "benchmarks", "cost"]

# Does the work once.
_Run = Callable[[], object]

_PROCESSES = 3
_SECONDS = 0.5  # of one process, unless a single run takes longer
_MAX_RUNS = 25
# Large problems miss the caches that small ones fit in: linear costs per unit are up to three times
# as high. What grows with the square would take as many times as long as there are more units.
_LINEAR = Target(3)


@dataclass(frozen=True)
class Case:
    """Something that there may be many of.

    Attributes:
        name: The operation.
        unit: The unit of the problem's size, in the singular.
        sizes: how many, from few to many.
        make: returns what does it, on a device and with so many.
        growth: the target for the cost of a unit at the last size, at the first 1.
        versus_cpu: per size, the target against the CPU; None promises nothing. Empty where the CPU
            has nothing to compare with.
        is_first: Whether to measure the first run, which may compile or learn, and not a later one.
        units_per_run: how many units a run has in each size; 0 for as many as the size.
        environment: settings of the process that measures.
    """

    name: str
    unit: str
    sizes: tuple[int, ...]
    make: Callable[[torch.device, int], _Run]
    growth: Target | None = _LINEAR
    versus_cpu: dict[int, Target | None] | None = None
    is_first: bool = False
    units_per_run: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    rows = []
    for case in CASES:
        small, large = case.sizes[0], case.sizes[-1]
        rows.append(
            Benchmark(
                f"growth: {case.name}, {large:,} to {small:,}",
                "smaller size",
                functools.partial(_ratios, (case, OPENREG, large), (case, OPENREG, small)),
                case.growth,
            )
        )
        rows += [
            Benchmark(
                f"growth: {case.name}, {size:,}",
                "cpu",
                functools.partial(_ratios, (case, OPENREG, size), (case, CPU, size)),
                target,
            )
            for size, target in (case.versus_cpu or {}).items()
        ]
    return rows


def cost(case: Case, device: torch.device, size: int) -> float:
    """Returns the minimum time of a unit over some runs in a separate process, in seconds."""
    return in_child(functools.partial(_cost, case, device, size))


_Measured = tuple[Case, torch.device, int]


def _ratios(subject: _Measured, reference: _Measured, effort: Effort) -> Ratios:
    ratios = []
    for repetition in range(min(_PROCESSES, effort.process_pairs)):
        order = (subject, reference) if repetition % 2 == 0 else (reference, subject)
        seconds = {measured[1:]: cost(*measured) for measured in order}
        ratios.append(seconds[subject[1:]] / seconds[reference[1:]])
    return Ratios(ratios)


def _cost(case: Case, device: torch.device, size: int) -> float:
    os.environ |= case.environment
    torch.ones(1, device=device).add_(1)  # work that a process does once
    run = case.make(device, size)
    seconds: list[float] = []
    if not case.is_first:
        run()
        run()
    while not seconds or (
        not case.is_first and len(seconds) < _MAX_RUNS and sum(seconds) < _SECONDS
    ):
        _synchronize(device)
        start = time.perf_counter()
        result = run()
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
        del result
    return min(seconds) / (case.units_per_run or size)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


# --- Lists of tensors


def _joined(function: Callable[[list[torch.Tensor]], object]) -> Callable[..., _Run]:
    def make(device: torch.device, size: int) -> _Run:
        tensors = [torch.ones(2, device=device) for _ in range(size)]
        return lambda: function(tensors)

    return make


def _adamw(device: torch.device, size: int) -> _Run:
    parameters = [torch.nn.Parameter(torch.ones(4, 4, device=device)) for _ in range(size)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return torch.optim.AdamW(parameters, foreach=True).step


# --- Graphs and streams


def _captured_rounds(stream_count: int) -> Callable[..., _Run]:
    """Each stream waits for the first one, computes, and is waited for, round after round."""

    def make(device: torch.device, size: int) -> _Run:
        streams = [torch.openreg.Stream(device) for _ in range(stream_count)]
        events = [torch.openreg.Event() for _ in range(2)]
        x = torch.zeros(1, device=device)

        def run() -> torch.openreg.Graph:
            graph = torch.openreg.Graph()
            with torch.openreg.graph(graph):
                origin = torch.openreg.current_stream()
                for _ in range(size // stream_count):
                    for stream in streams:
                        events[0].record(origin)
                        stream.wait_event(events[0])
                        with stream:
                            x.zero_()
                        events[1].record(stream)
                        origin.wait_event(events[1])
            return graph

        return run

    return make


def _replay(device: torch.device, size: int) -> _Run:
    x = torch.zeros(1, device=device)
    graph = torch.openreg.Graph()
    with torch.openreg.graph(graph):
        for _ in range(size):
            x.add_(1)
    return graph.replay


_ROUNDS = 1_500  # the threads that wait wake once, at the end


def _round_trips(device: torch.device, size: int) -> _Run:
    """Two streams wait for each other in turn, while others wait for the end of the first one.

    The C API makes the streams: those of torch come from a pool of fewer.
    """
    torch.zeros(1, device=device)
    driver = ctypes.CDLL(str(Path(torch_openreg.__file__).parent / "lib" / "libopenreg.so"))

    def make(function: str, count: int) -> list[ctypes.c_void_p]:
        handles = [ctypes.c_void_p() for _ in range(count)]
        for handle in handles:
            getattr(driver, function)(ctypes.byref(handle))
        return handles

    one, other, *waiting = make("orStreamCreate", 2 + size)
    end, *events = make("orEventCreate", 1 + 2 * _ROUNDS)
    gate = threading.Event()
    hold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait() and None)

    def run() -> None:
        gate.clear()
        driver.orLaunchHostFunc(one, hold, None)
        for there, back in zip(events[::2], events[1::2], strict=True):
            driver.orEventRecord(there, one)
            driver.orStreamWaitEvent(other, there, 0)
            driver.orEventRecord(back, other)
            driver.orStreamWaitEvent(one, back, 0)
        driver.orEventRecord(end, one)
        for stream in waiting:
            driver.orStreamWaitEvent(stream, end, 0)
        gate.set()
        driver.orStreamSynchronize(one)

    return run


def _all_devices(device: torch.device, size: int) -> _Run:
    tensors = [torch.zeros(1, device=torch.device(device.type, index)) for index in range(size)]

    def run() -> None:
        for _ in range(100):
            for tensor in tensors:
                tensor.add_(1)
        for tensor in tensors:
            _synchronize(tensor.device)

    return run


def _launches(device: torch.device, size: int) -> _Run:
    x = torch.zeros(1, device=device)

    def run() -> None:
        for _ in range(size):
            x.add_(1)

    return run


def _collected(device: torch.device, size: int) -> _Run:
    launch = _launches(device, size)

    def run() -> object:
        with profiler.collect() as activities:
            launch()
        return activities

    return run


def _sanitized(device: torch.device, size: int) -> _Run:
    launch = _launches(device, size)

    def run() -> None:
        with sanitizer.check("collect"):
            launch()

    return run


# --- Memory and plans


def _live_tensors(device: torch.device, size: int) -> _Run:
    return lambda: [torch.empty(1, device=device) for _ in range(size)]


def _random_allocations(device: torch.device, size: int) -> _Run:
    kept: list[torch.Tensor | None] = [None] * 1000

    def run() -> None:
        state = 1
        for _ in range(size):
            state = (state * 1103515245 + 12345) % 2**31
            kept[state % 1000] = torch.empty(state // 1000 % 20_000, device=device)

    return run


def _shapes(device: torch.device, size: int) -> _Run:
    """Five dimensions of 1 to 8 each: 32,768 shapes, none of which is large."""
    x = torch.ones(1, device=device)
    shapes = [[1 + i // 8**power % 8 for power in range(5)] for i in range(size)]

    def run() -> None:
        for shape in shapes:
            torch.nan_to_num(x.expand(shape))

    return run


def _copy(device: torch.device, size: int) -> _Run:
    source = torch.ones(size, dtype=torch.uint8)
    target = torch.empty(size, dtype=torch.uint8, device=device)
    return lambda: target.copy_(source)


_CPU: Target | None = None  # compared with the CPU, without a promise

CASES = (
    Case(
        "first stack",
        "tensor",
        (300, 1_000, 3_000, 10_000),
        _joined(torch.stack),
        versus_cpu={10_000: Target(4)},
        is_first=True,
    ),
    Case(
        "stack",
        "tensor",
        (300, 1_000, 3_000, 10_000, 30_000),
        _joined(torch.stack),
        versus_cpu={10_000: Target(2)},
    ),
    Case(
        "cat",
        "tensor",
        (300, 1_000, 3_000, 10_000, 30_000),
        _joined(torch.cat),
        versus_cpu={10_000: Target(2)},
    ),
    Case(
        "first _foreach_neg",
        "tensor",
        (300, 1_000, 3_000, 10_000),
        _joined(torch._foreach_neg),
        is_first=True,
    ),
    Case(
        "AdamW.step",
        "parameter",
        (300, 1_000, 4_000, 10_000),
        _adamw,
        versus_cpu={1_000: Target(1.2), 4_000: Target(1.3), 10_000: Target(1.3)},
    ),
    Case("capture, 1 stream", "node", (100, 400, 2_000, 8_000), _captured_rounds(1)),
    Case("capture, 16 streams", "node", (160, 800, 4_000, 16_000), _captured_rounds(16)),
    Case(
        "round trip while streams wait",
        "round trip, by streams that wait",
        (1, 4, 16, 64),
        _round_trips,
        growth=Target(2),
        units_per_run=_ROUNDS,
    ),
    Case(
        "100 launches on each device",
        "device",
        (1, 4, 16, 64),
        _all_devices,
        environment={"OPENREG_DEVICE_COUNT": "64"},
    ),
    Case("replay", "node", (100, 1_000, 10_000, 100_000), _replay),
    Case("launch", "kernel", (1_000, 30_000, 1_000_000), _launches, versus_cpu={1_000_000: _CPU}),
    Case(
        "live tensors",
        "tensor",
        (1_000, 30_000, 1_000_000),
        _live_tensors,
        versus_cpu={1_000_000: _CPU},
    ),
    Case(
        "random allocations",
        "tensor",
        (1_000, 30_000, 1_000_000),
        _random_allocations,
        versus_cpu={1_000_000: _CPU},
    ),
    Case("first call of a shape", "shape", (300, 3_000, 30_000), _shapes, is_first=True),
    Case("launch, collected", "kernel", (1_000, 30_000, 1_000_000), _collected),
    Case("launch, sanitizer on", "kernel", (1_000, 10_000, 50_000), _sanitized),
    Case(
        "copy",
        "byte",
        (1 << 24, 1 << 28, 1 << 32),  # all larger than a cache
        _copy,
        versus_cpu={1 << 32: _CPU},
    ),
)
