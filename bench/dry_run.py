"""What a launch costs in a dry run, with its allocation and its record."""

import os
import subprocess
import sys

from bench.measure import Benchmark, Effort, Ratios, Target, UnmeasurableError

__all__ = ["benchmarks"]

_PROGRAM = """
import sys, time
import torch

x = torch.empty(2**28, device="cuda")
repetitions, seconds = int(sys.argv[1]), float(sys.argv[2])
for repetition in range(repetitions + 1):
    count = 0
    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        for _ in range(100):
            y = x + x
        count += 100
    if repetition:  # the first one learns
        print(1e6 * passed / count)
"""


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [Benchmark("dry run: addition of 1 GiB, call returns", "us", _additions, Target(15))]


def _additions(effort: Effort) -> Ratios:
    settings = {
        "OPENREG_DEVICE_TYPE": "cuda",
        "OPENREG_DRY_RUN": "1",
        "OPENREG_DRY_RUN_GPU": "h100",
        "OPENREG_DRY_RUN_SUMMARY": "0",
        "OPENREG_CUDA_NOTICE": "0",
    }
    arguments = [str(effort.repetitions), str(effort.sample_seconds)]
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise UnmeasurableError(ended.stderr.strip().splitlines()[-1])
    return Ratios([float(line) for line in ended.stdout.split()])
