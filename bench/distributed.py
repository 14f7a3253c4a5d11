"""Collectives and distributed training steps of several processes, relative to Gloo's on the CPU.

The other processes run the same statement as often. Each has one intra-op thread.

A collective of 1 KiB takes less time than waking the threads that take part in it, so how it is
issued decides. Bursts are issued before anybody waits, on both sides; in other rows, the host waits
for each collective, on both sides.
"""

import functools
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, ClassVar, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bench.measure import CPU, OPENREG, Benchmark, Effort, Names, Ratios, Subject, Target, compare
from bench.training import make_step
from torch_openreg.distributed import BACKEND_NAME

__all__ = ["benchmarks"]

_KIB = 1024
_MIB = 1024**2
_STRETCH = 4
_STEP_STRETCH = 10  # as that of steps in one process
_LATE_SECONDS = 0.3
_CALLS = 50  # in a burst: less than the capacity of a stream's queue
_BURST = 20  # the same
_WARM_UPS = 5  # bursts
_PIECES = 20  # of the work that does not need the late process

_Setup: TypeAlias = Callable[[torch.device], Names]


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        *(
            _versus_gloo(f"distributed: {name}", statement, functools.partial(_make, size), target)
            for name, statement, size, target in _COLLECTIVES
        ),
        *(
            _versus_gloo_of_four(
                f"distributed, 4 processes: {name}",
                statement,
                functools.partial(_make, size),
                target,
            )
            for name, statement, size, target in _COLLECTIVES_OF_FOUR
        ),
        Benchmark("distributed: all_reduce, async call returns", "us", _issue, Target(10)),
        _versus_gloo(
            "distributed: step of DDP", "step()", _make_ddp_step, Target(1.15), _STEP_STRETCH
        ),
        _versus_gloo(
            "distributed: step of FSDP2", "step()", _make_fsdp_step, Target(1.3), _STEP_STRETCH
        ),
        Benchmark(
            "distributed: work done until a late process comes",
            "all of it",
            _overlap,
            Target(0.95, is_upper=False),
        ),
    ]


# --- Statements

_REDUCE = "all_reduce(x)"
_GATHER = "all_gather(out, x)"
_BURST_REDUCE = "wait([all_reduce(one, async_op=True) for one in xs])"
_BURST_GATHER = "wait([all_gather(one, x, async_op=True) for one in outs])"
_COLLECTIVES = (
    ("all_reduce, 1 KiB, bursts", _BURST_REDUCE, _KIB, Target(1.5)),
    ("all_reduce, 1 KiB, waited for", "all_reduce(x); end()", _KIB, Target(1.5)),
    ("all_gather, 1 KiB, bursts", _BURST_GATHER, _KIB, Target(1.5)),
    ("all_reduce, 1 MiB", _REDUCE, _MIB, Target(1.1)),
    ("all_gather, 1 MiB", _GATHER, _MIB, Target(1.1)),
    ("all_reduce, 16 MiB", _REDUCE, 16 * _MIB, Target(1.1)),
    ("all_gather, 16 MiB", _GATHER, 16 * _MIB, Target(1.1)),
)
_COLLECTIVES_OF_FOUR = (
    ("all_reduce, 1 KiB, bursts", _BURST_REDUCE, _KIB, Target(1.5)),
    ("all_reduce, 1 MiB", _REDUCE, _MIB, Target(1.2)),
)


def _make(size: int, device: torch.device) -> Names:
    xs = [torch.zeros(size // 4, device=device) for _ in range(_BURST if size == _KIB else 1)]
    outs = [torch.empty(dist.get_world_size() * size // 4, device=device) for _ in xs]

    def wait(works: "list[dist.Work]") -> None:
        for work in works:
            work.wait()

    def end() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize()

    return {
        "x": xs[0],
        "xs": xs,
        "out": outs[0],
        "outs": outs,
        "all_reduce": dist.all_reduce,
        "all_gather": dist.all_gather_single,
        "wait": wait,
        "end": end,
    }


def _make_ddp_step(device: torch.device) -> Names:
    return make_step(device, DistributedDataParallel)


def _make_fsdp_step(device: torch.device) -> Names:
    mesh = init_device_mesh(device.type, (2,))

    def wrap(model: nn.Module) -> nn.Module:
        fully_shard(model, mesh=mesh)
        return model

    return make_step(device, wrap)


# --- Several processes


# To the ranks beside this one, which is rank 0.
_pipes: "list[Connection[Any, Any]]" = []


def _tell(*request: Any) -> None:
    """Has the other ranks call a function with arguments. If there are none, one is started."""
    if not _pipes:
        Finalize(None, _start(1), exitpriority=1)  # also in a child, where atexit has no effect
    for pipe in _pipes:
        pipe.send(request)


def _start(count: int) -> Callable[[], None]:
    """Starts other ranks. Returns a function that ends them."""
    context = multiprocessing.get_context("spawn")
    folder = tempfile.TemporaryDirectory()
    store = f"{folder.name}/store"
    processes = []
    for rank in range(1, count + 1):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_follow, args=(theirs, rank, count + 1, store), daemon=True
        )
        process.start()
        _pipes.append(ours)
        processes.append(process)
    _connect(0, count + 1, store)

    def end() -> None:
        _tell(dist.destroy_process_group)
        dist.destroy_process_group()
        for process in processes:
            process.join()
        folder.cleanup()

    return end


def _connect(rank: int, size: int, path: str) -> None:
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(0)
    dist.init_process_group(
        f"cpu:gloo,{OPENREG.type}:{BACKEND_NAME}",
        store=dist.FileStore(path, size),
        rank=rank,
        world_size=size,
    )


def _follow(pipe: "Connection[Any, Any]", rank: int, size: int, path: str) -> None:
    _connect(rank, size, path)
    while dist.is_initialized():
        function, *arguments = pipe.recv()
        function(*arguments)


class _Together(Subject):
    """A statement that all processes run as often."""

    _theirs: ClassVar[list[Subject]] = []

    @classmethod
    def make(cls, statement: str, setup: _Setup, device: torch.device) -> "_Together":
        """Makes it on all: to make the names may take collectives."""
        _tell(cls._make_there, statement, setup, device)
        return cls(statement, setup(device), device)

    def seconds(self, count: int) -> float:
        """As that of the base class, in all processes."""
        _tell(_Together._run_there, self.device, count)
        dist.barrier()
        return super().seconds(count)

    @staticmethod
    def _make_there(statement: str, setup: _Setup, device: torch.device) -> None:
        kept = [each for each in _Together._theirs if each.device != device]
        _Together._theirs = [*kept, Subject(statement, setup(device), device)]

    @staticmethod
    def _run_there(device: torch.device, count: int) -> None:
        (subject,) = (each for each in _Together._theirs if each.device == device)
        dist.barrier()
        subject.seconds(count)


def _compare(statement: str, setup: _Setup, effort: Effort) -> Ratios:
    subject, reference = (_Together.make(statement, setup, each) for each in (OPENREG, CPU))
    return compare(subject, reference, effort)


def _versus_gloo(
    name: str, statement: str, setup: _Setup, target: Target, stretch: float = _STRETCH
) -> Benchmark:
    def measure(effort: Effort) -> Ratios:
        effort = replace(effort, sample_seconds=stretch * effort.sample_seconds)
        return _compare(statement, setup, effort)

    return Benchmark(name, "gloo", measure, target)


def _versus_gloo_of_four(name: str, statement: str, setup: _Setup, target: Target) -> Benchmark:
    def measure(effort: Effort) -> Ratios:
        effort = replace(effort, sample_seconds=_STRETCH * effort.sample_seconds)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_lead, args=(theirs, 4, statement, setup, effort))
        process.start()
        theirs.close()
        values = ours.recv()
        process.join()
        return Ratios(values)

    return Benchmark(name, "gloo", measure, target)


def _lead(
    pipe: "Connection[Any, Any]", size: int, statement: str, setup: _Setup, effort: Effort
) -> None:
    """Measures as rank 0 of a number of processes, for one that is rank 0 of two already."""
    end = _start(size - 1)
    pipe.send(_compare(statement, setup, effort).values)
    end()


# --- Measurements that are not ratios of two statements


def _issue(effort: Effort) -> Ratios:
    """Measures how many microseconds a call takes that returns before the collective begins."""
    values = []
    for _ in range(_WARM_UPS + effort.repetitions):
        _tell(_issue_calls)
        values.append(_issue_calls() * 1e6)
    return Ratios(values[_WARM_UPS:])


def _issue_calls() -> float:
    """Returns the seconds that a call takes, of a burst."""
    x = torch.zeros(256, device=OPENREG)
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    dist.barrier()
    start = time.perf_counter()
    works = [dist.all_reduce(x, async_op=True) for _ in range(_CALLS)]
    elapsed = time.perf_counter() - start
    works[-1].wait()
    torch.accelerator.synchronize()
    return elapsed / _CALLS


def _overlap(effort: Effort) -> Ratios:
    """Measures how much of the work that does not need a late process is done when it comes."""
    values = []
    for _ in range(effort.repetitions):
        _tell(_come_late)
        values.append(_work_meanwhile())
    return Ratios(values)


def _come_late() -> None:
    x = torch.zeros(256, device=OPENREG)
    dist.barrier()
    time.sleep(_LATE_SECONDS)
    dist.all_reduce(x)
    torch.accelerator.synchronize()


def _work_meanwhile() -> float:
    x = torch.zeros(256, device=OPENREG)
    y = torch.rand(100_000, device=OPENREG)
    seconds = Subject("y.exp_()", {"y": y}, OPENREG).seconds(100) / 100
    # As much work as fits into two thirds of the time.
    count = round(2 / 3 * _LATE_SECONDS / seconds / _PIECES)
    dist.barrier()
    reduced = dist.all_reduce(x, async_op=True)
    pieces = []
    for _ in range(_PIECES):
        for _ in range(count):
            y.exp_()
        pieces.append(torch.Event(OPENREG))
        pieces[-1].record()
    while not reduced.is_completed():
        time.sleep(0.001)
    done = sum(piece.query() for piece in pieces)
    torch.accelerator.synchronize()
    return done / _PIECES
