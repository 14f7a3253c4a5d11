"""Collectives and distributed training steps of two processes, relative to Gloo's on the CPU.

The other process runs the same statement as often. Each has one intra-op thread.
"""

import atexit
import functools
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
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
_LATE_SECONDS = 0.3
_CALLS = 50  # in a burst: below what a stream's queue holds
_PIECES = 20  # of the work that does not need the late process

_Setup: TypeAlias = Callable[[torch.device], Names]


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    rows = [
        _versus_gloo(
            f"distributed: {name}, {size_name}",
            statement,
            functools.partial(_make_tensors, size),
            target,
        )
        for size_name, size, target in (
            ("1 KiB", _KIB, Target(1.5)),
            ("1 MiB", _MIB, Target(1.1)),
            ("16 MiB", 16 * _MIB, Target(1.1)),
        )
        for name, statement in (
            ("all_reduce", "all_reduce(x)"),
            ("all_gather", "all_gather(out, x)"),
        )
    ]
    return [
        *rows,
        Benchmark("distributed: all_reduce, async call returns", "us", _issue, Target(10)),
        _versus_gloo("distributed: step of DDP", "step()", _make_ddp_step, Target(1.15)),
        _versus_gloo("distributed: step of FSDP2", "step()", _make_fsdp_step, Target(1.3)),
        Benchmark(
            "distributed: work done until a late process comes",
            "all of it",
            _overlap,
            Target(0.95, is_upper=False),
        ),
    ]


# --- Statements


def _make_tensors(size: int, device: torch.device) -> Names:
    x = torch.zeros(size // 4, device=device)
    out = torch.empty(2 * x.numel(), device=device)
    return {
        "x": x,
        "out": out,
        "all_reduce": dist.all_reduce,
        "all_gather": dist.all_gather_single,
    }


def _make_ddp_step(device: torch.device) -> Names:
    return make_step(device, DistributedDataParallel)


def _make_fsdp_step(device: torch.device) -> Names:
    mesh = init_device_mesh(device.type, (2,))

    def wrap(model: nn.Module) -> nn.Module:
        fully_shard(model, mesh=mesh)
        return model

    return make_step(device, wrap)


# --- Two processes


@functools.cache
def _other() -> "Connection[Any, Any]":
    """Starts the other process, rank 1 beside this one, which lives as long. Returns a pipe to it.

    It calls what it gets: a function and its arguments.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    folder = tempfile.TemporaryDirectory()
    process = context.Process(target=_follow, args=(theirs, f"{folder.name}/store"), daemon=True)
    process.start()
    _connect(0, f"{folder.name}/store")

    def end() -> None:
        ours.send(None)
        dist.destroy_process_group()
        process.join()
        folder.cleanup()

    atexit.register(end)
    return ours


def _connect(rank: int, path: str) -> None:
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(0)
    dist.init_process_group(
        f"cpu:gloo,{OPENREG.type}:{BACKEND_NAME}",
        store=dist.FileStore(path, 2),
        rank=rank,
        world_size=2,
    )


def _follow(pipe: "Connection[Any, Any]", path: str) -> None:
    _connect(1, path)
    while (request := pipe.recv()) is not None:
        function, *arguments = request
        function(*arguments)
    dist.destroy_process_group()


class _Together(Subject):
    """A statement that both processes run as often."""

    _theirs: ClassVar[list[Subject]] = []

    @classmethod
    def make(cls, statement: str, setup: _Setup, device: torch.device) -> "_Together":
        """Makes it on both: to make the names may take collectives."""
        _other().send((cls._make_there, statement, setup, device))
        return cls(statement, setup(device), device)

    def seconds(self, count: int) -> float:
        """As that of the base class, in both processes."""
        _other().send((_Together._run_there, self.device, count))
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


def _versus_gloo(name: str, statement: str, setup: _Setup, target: Target) -> Benchmark:
    def measure(effort: Effort) -> Ratios:
        effort = replace(effort, sample_seconds=_STRETCH * effort.sample_seconds)
        subject, reference = (_Together.make(statement, setup, each) for each in (OPENREG, CPU))
        return compare(subject, reference, effort)

    return Benchmark(name, "gloo", measure, target)


# --- What is no ratio of two statements


def _issue(effort: Effort) -> Ratios:
    """Measures how many microseconds a call takes that returns before the collective begins."""
    values = []
    for _ in range(effort.repetitions):
        _other().send((_issue_calls,))
        values.append(_issue_calls() * 1e6)
    return Ratios(values)


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
        _other().send((_come_late,))
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
