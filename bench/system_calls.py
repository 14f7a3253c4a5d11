"""System calls per step of a loop in its steady state.

A tool counts the system calls of a process that runs a loop, once with few steps and once with
many. The difference, divided by the additional steps, is free of what starting and ending
cost. Run as ``python -m bench.system_calls LOOP DEVICE STEPS``, this module is that process.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

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
)
from bench.operators import make_operands
from bench.ops import pair
from bench.training import make_step

__all__ = ["benchmarks"]

_UNIT = "system calls"
_WARM_UP_STEPS = 200
# Statement, setup, and the number of steps by which the runs differ.
_LOOPS: dict[str, tuple[str, Callable[[torch.device], Names], int]] = {
    "add, 1 element": ("x + y", pair(1), 200_000),
    "add_, 1 element": ("x.add_(y)", pair(1), 200_000),
    "index_select": ("x.index_select(0, rows)", make_operands, 200_000),  # through the fallback
    "MLP step": ("step()", make_step, 1000),
}


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    # Not 0: a worker sleeps if it is faster than an interrupted host thread.
    none = Target(0.01)
    return [
        _benchmark("add, 1 element", OPENREG, none),
        _benchmark("add_, 1 element", OPENREG, none),
        _benchmark("index_select", OPENREG, none),
        _benchmark("MLP step", OPENREG),
        _benchmark("MLP step", CPU),
    ]


def _benchmark(loop: str, device: torch.device, target: Target | None = None) -> Benchmark:
    def measure(effort: Effort) -> Ratios:
        count_calls = _find_counter()
        _, _, steps = _LOOPS[loop]
        repetitions = max(1, effort.process_pairs // 5)
        return Ratios(
            [
                (count_calls(loop, device, 2 * steps) - count_calls(loop, device, steps)) / steps
                for _ in range(repetitions)
            ]
        )

    return Benchmark(
        f"system calls: {loop}, on {device.type}", f"{_UNIT} per step", measure, target
    )


def _find_counter() -> Callable[[str, torch.device, int], int]:
    """Returns a function that runs a loop in a process and counts its system calls.

    perf comes first, as it does not slow the process down; it may be installed and forbidden.
    """
    for tool, command, pattern in (
        ("perf", ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter"], r"^(\d+),"),
        ("strace", ["strace", "-f", "-c"], r"^100\.00\s+\S+\s+(?:\d+\s+)?(\d+)\s.*total$"),
    ):
        if shutil.which(tool) and _count([*command, "-o"], pattern, ["true"]) is not None:
            return _counter([*command, "-o"], pattern)
    raise UnmeasurableError("neither perf (with the right to count system calls) nor strace works")


def _counter(tool: list[str], pattern: str) -> Callable[[str, torch.device, int], int]:
    def count_calls(loop: str, device: torch.device, steps: int) -> int:
        program = [sys.executable, "-m", "bench.system_calls", loop, str(device), str(steps)]
        count = _count(tool, pattern, program)
        if count is None:
            raise UnmeasurableError(f"{tool[0]} failed to count the system calls of the loop")
        return count

    return count_calls


def _count(tool: list[str], pattern: str, program: list[str]) -> int | None:
    """Returns the number of system calls of a program, None if the tool did not give any."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "calls.txt"
        completed = subprocess.run(
            [*tool, str(output), *program],
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"LC_ALL": "C"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if completed.returncode != 0 or not output.exists():
            return None
        found = re.search(pattern, output.read_text(), re.MULTILINE)
        return int(found[1]) if found else None


def _run_loop(loop: str, device: torch.device, steps: int) -> None:
    statement, setup, _ = _LOOPS[loop]
    subject = Subject(statement, setup(device), device)
    subject.seconds(_WARM_UP_STEPS)
    subject.seconds(steps)


if __name__ == "__main__":
    _run_loop(sys.argv[1], torch.device(sys.argv[2]), int(sys.argv[3]))
