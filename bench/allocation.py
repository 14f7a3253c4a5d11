"""Allocation: of tensors against the CPU's, and of the cache against the driver's own."""

import ctypes
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
