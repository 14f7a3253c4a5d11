"""Allocation: of tensors against the CPU's, and of the cache against the driver's own."""

import ctypes
import subprocess
import sys
from pathlib import Path

import torch

import torch_openreg
from bench.measure import (
    OPENREG,
    Benchmark,
    Effort,
    Names,
    Ratios,
    Subject,
    Target,
    compare,
    versus_cpu,
)

__all__ = ["benchmarks"]

_KIB, _MIB = 1024, 1024**2


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        *(_tensor(name, size) for name, size in (("1 KiB", _KIB), ("32 MiB", 32 * _MIB))),
        _many_tensors(),
        Benchmark("live tensor of 1 element", "bytes", _bytes_per_tensor, Target(700)),
        *(_driver(name, size) for name, size in (("1 KiB", _KIB), ("32 MiB", 32 * _MIB))),
    ]


def _tensor(name: str, size: int) -> Benchmark:
    def setup(device: torch.device) -> Names:
        return {"empty": torch.empty, "size": size, "dtype": torch.uint8, "device": device}

    statement = "empty(size, dtype=dtype, device=device)"
    return versus_cpu(f"allocate and free a tensor of {name}", statement, setup)


def _many_tensors() -> Benchmark:
    def setup(device: torch.device) -> Names:
        sizes = [512 * (1 + i * 37 % 101) for i in range(100)]
        return {"empty": torch.empty, "sizes": sizes, "device": device}

    statement = "tensors = [empty(size, device=device) for size in sizes]"
    return versus_cpu("allocate 100 tensors, then free them", statement, setup)


def _bytes_per_tensor(effort: Effort) -> Ratios:
    # Resident memory of the process, device memory included.
    program = """
import resource
import torch

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

kept = [torch.ones(1, device="openreg") for _ in range(1000)]
torch.accelerator.synchronize()
before = resident()
kept += [torch.ones(1, device="openreg") for _ in range(100_000)]
torch.accelerator.synchronize()
print((resident() - before) / 100_000)
"""

    command = [sys.executable, "-c", program]
    runs = [
        subprocess.run(command, check=True, capture_output=True, text=True)
        for _ in range(min(3, effort.process_pairs))
    ]
    return Ratios([float(run.stdout) for run in runs])


def _driver(name: str, size: int) -> Benchmark:
    # The memory is used, or there would be no work for orFree to wait for and no page to give back.
    def measure(effort: Effort) -> Ratios:
        torch.openreg.init()
        driver = ctypes.CDLL(str(Path(torch_openreg.__file__).parent / "lib" / "libopenreg.so"))
        stream = ctypes.c_void_p()
        driver.orGetDefaultStream(ctypes.byref(stream), OPENREG.index)
        address = ctypes.c_void_p()
        names: Names = {
            "allocate": torch.openreg.caching_allocator_alloc,
            "delete": torch.openreg.caching_allocator_delete,
            "malloc": driver.orMalloc,
            "free": driver.orFree,
            "fill": driver.orMemsetAsync,
            "address": address,
            "reference": ctypes.byref(address),
            "size": size,
            "c_size": ctypes.c_size_t(size),
            "stream": stream,
        }
        fill = "fill(address, 1, c_size, stream)"
        return compare(
            Subject(
                f"address.value = allocate(size); {fill}; delete(address.value)", names, OPENREG
            ),
            Subject(f"malloc(reference, c_size); {fill}; free(address)", names, OPENREG),
            effort,
        )

    return Benchmark(f"allocate, fill and free {name}", "orMalloc and orFree", measure)
