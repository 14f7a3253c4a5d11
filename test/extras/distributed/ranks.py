"""Processes as ranks of a group, for tests.

``Ranks`` runs functions of a test file on all of them, side by side. They are forked from a server
that has imported torch and has used no device, so starting them takes no time. Ranks that exceed
the time limit are ended, and the test fails with the ranks' output.
"""

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from common import DEVICE_COUNT, DEVICE_TYPE, TestCase

__all__ = ["BACKEND", "LIMIT_S", "NAME", "RankError", "Ranks", "RanksTestCase", "device_of"]

NAME = "nccl" if DEVICE_TYPE == "cuda" else "occl"
BACKEND = f"cpu:gloo,{DEVICE_TYPE}:{NAME}"

# A hung test is ended after this time, far more than any needs on a busy machine.
LIMIT_S = 120

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["common", "torch.distributed", "extras.distributed.ranks"])


class RankError(AssertionError):
    """A rank has raised an exception, has ended, or has not ended."""


def device_of(rank: int) -> torch.device:
    """Returns the device of a rank: ranks take turns in having them."""
    return torch.device(DEVICE_TYPE, rank % DEVICE_COUNT)


class Ranks:
    """A number of processes with a default group.

    Args:
        size: how many.
        backend: of the default group; None makes no group.
        timeout_s: that of the group.
        environment: variables for the processes.
    """

    def __init__(
        self,
        size: int,
        backend: str | None = BACKEND,
        timeout_s: float = LIMIT_S,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        self._processes = []
        self._pipes = []
        for rank in range(size):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_serve,
                args=(
                    theirs,
                    rank,
                    size,
                    self._folder.name,
                    backend,
                    timeout_s,
                    environment or {},
                    [path for path in sys.path if path],
                ),
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Has all ranks call ``function(rank, size, *args)``, and returns."""
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send((function.__module__, function.__qualname__, args))

    def results(self, of: Sequence[int] | None = None) -> list[Any]:
        """Waits for the results of the ranks, in order.

        Raises:
            RankError: One has raised an exception, or has ended.
        """
        answers = [self._answer(rank) for rank in (range(self.size) if of is None else of)]
        errors = [value for kind, value in answers if kind == "error"]
        if errors:
            raise RankError("\n".join(errors))
        return [value for _, value in answers]

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Has all ranks call ``function(rank, size, *args)``; returns the results in order."""
        self.start(function, *args)
        return self.results()

    def exit_codes(self) -> list[int]:
        """Waits until all have ended, and returns their exit codes."""
        for process in self._processes:
            process.join(LIMIT_S)
            if process.is_alive():
                self._fail("a rank has not ended")
        return [process.exitcode for process in self._processes]

    def is_alive(self) -> bool:
        """Returns whether none has ended."""
        return all(process.is_alive() for process in self._processes)

    def kill(self, rank: int) -> None:
        """Ends a rank, as the system does when memory is short."""
        self._processes[rank].kill()
        self._processes[rank].join()

    def stop(self, rank: int) -> None:
        """Keeps all threads of a rank from running, those of Gloo as well."""
        pid = self._processes[rank].pid
        os.kill(pid, signal.SIGSTOP)
        # A thread may go on until another one has taken the signal.
        deadline = time.monotonic() + LIMIT_S
        while any(state != "T" for state in _thread_states(pid)):
            if time.monotonic() > deadline:
                self._fail(f"rank {rank} has not stopped")
            time.sleep(0.001)

    def go_on(self, rank: int) -> None:
        """Undoes stop()."""
        os.kill(self._processes[rank].pid, signal.SIGCONT)

    def output(self, rank: int) -> str:
        """Returns the output of a rank so far."""
        with open(os.path.join(self._folder.name, f"output{rank}"), errors="replace") as file:
            return file.read()

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send(None)
        for process in self._processes:
            process.join(LIMIT_S)
        is_hung = any(process.is_alive() for process in self._processes)
        output = self._output()
        self._end()
        if is_hung:
            raise RankError(f"ranks did not end\n{output}")

    def _answer(self, rank: int) -> tuple[str, Any]:
        try:
            if not self._pipes[rank].poll(LIMIT_S):
                self._fail(f"rank {rank} has not answered within {LIMIT_S} s")
            return self._pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            self._processes[rank].join(LIMIT_S)
            self._fail(f"rank {rank} has ended with {self._processes[rank].exitcode}")

    def _fail(self, reason: str) -> NoReturn:
        output = self._output()
        self._end()
        raise RankError(f"{reason}\n{output}")

    def _output(self) -> str:
        texts = []
        for rank in range(self.size):
            path = os.path.join(self._folder.name, f"output{rank}")
            if os.path.exists(path):
                with open(path, errors="replace") as file:
                    texts.append(f"--- rank {rank}\n{file.read()[-4000:]}")
        return "\n".join(texts)

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._end()


def _thread_states(pid: int) -> list[str]:
    """Returns the states of the threads of a process, as /proc names them."""
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def _serve(pipe, rank, size, folder, backend, timeout_s, environment, path) -> None:
    """Runs in a rank: calls the requested functions until the end is requested."""
    with open(os.path.join(folder, f"output{rank}"), "wb", buffering=0) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.path[:] = path
    # Each on a host of its own, as NCCL refuses two ranks on one device.
    os.environ.update({"NCCL_HOSTID": str(rank), **environment})
    dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    torch.openreg.set_device(device_of(rank).index)
    if backend is not None:
        dist.init_process_group(
            backend,
            store=dist.FileStore(os.path.join(folder, "store"), size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
    while (request := pipe.recv()) is not None:
        module, name, args = request
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        try:
            pipe.send(("ok", function(rank, size, *args)))
        except BaseException:
            pipe.send(("error", f"rank {rank}:\n{traceback.format_exc()}"))
    if dist.is_initialized():
        dist.destroy_process_group()


def compare_with_cpu(rank: int, size: int, module: str, name: str, *args: Any) -> tuple[int, int]:
    """Runs a function of a test file on the CPU, with Gloo, and on the device.

    The function takes a device, the rank, the size and ``args``; it returns tensors on the CPU.

    Returns:
        How many of them differ in a bit or in their type, and how many there are.
    """
    function = getattr(importlib.import_module(module), name)
    expected = function(torch.device("cpu"), rank, size, *args)
    results = function(device_of(rank), rank, size, *args)
    assert len(results) == len(expected)
    differing = sum(
        not (a.dtype == b.dtype and torch.equal(a, b))
        for a, b in zip(results, expected, strict=True)
    )
    return differing, len(results)


class RanksTestCase(TestCase):
    """Tests that share two ranks, which are started anew after a test that has ended them.

    Attributes:
        SIZE: how many ranks, if not two.
    """

    SIZE = 2

    ranks: Ranks | None

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.ranks = None

    @classmethod
    def tearDownClass(cls) -> None:
        if cls.ranks is not None and cls.ranks.is_alive():
            cls.ranks.close()
        super().tearDownClass()

    def run_ranks(self, function: Callable[..., Any], *args: Any) -> Any:
        cls = type(self)
        if cls.ranks is None or not cls.ranks.is_alive():
            cls.ranks = Ranks(cls.SIZE)
        return cls.ranks.run(function, *args)

    def compare(self, function: Callable[..., Any], *args: Any) -> None:
        """Checks that all ranks get the CPU's bits; see ``compare_with_cpu``."""
        counts = self.run_ranks(compare_with_cpu, function.__module__, function.__name__, *args)
        for differing, count in counts:
            self.assertGreater(count, 0)
            self.assertEqual(differing, 0)
