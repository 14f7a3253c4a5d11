"""Copies, as bandwidth relative to a copy of the same bytes between two CPU tensors."""

import ctypes
from collections.abc import Callable

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
    compare,
    compare_apart,
    on_cpu,
)

__all__ = ["benchmarks"]

_MIB = 1024**2
_SIZES = (_MIB, 64 * _MIB)
_COPY = "destination.copy_(source)"
_COPY_ASYNC = "destination.copy_(source, non_blocking=True)"
_TARGET = Target(0.9, is_upper=False)


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [row for size in _SIZES for row in _benchmarks_of_size(size)]


def _benchmarks_of_size(size: int) -> list[Benchmark]:
    def row(
        name: str,
        statement: str,
        source: Callable[[], torch.Tensor],
        destination: Callable[[], torch.Tensor],
    ) -> Benchmark:
        def measure(effort: Effort) -> Ratios:
            def subject() -> Subject:
                return Subject(
                    statement, {"source": source(), "destination": destination()}, OPENREG
                )

            return compare_apart(subject, lambda: _reference(size), effort).inverted()

        return Benchmark(
            f"copy: {name}, {size // _MIB} MiB", "cpu copy's bandwidth", measure, _TARGET
        )

    def pageable() -> torch.Tensor:
        return _bytes(size, CPU)

    def pinned() -> torch.Tensor:
        return _bytes(size, CPU).pin_memory()

    def device() -> torch.Tensor:
        return _bytes(size, OPENREG)

    def peer() -> torch.Tensor:
        if torch.accelerator.device_count() < 2:
            raise UnmeasurableError("only one device is visible")
        return _bytes(size, torch.device(OPENREG.type, 1))

    return [
        row("host to device", _COPY, pageable, device),
        row("pinned host to device", _COPY_ASYNC, pinned, device),
        row("device to host", _COPY, device, pageable),
        row("device to pinned host", _COPY_ASYNC, device, pinned),
        row("device to device", _COPY, device, device),
        row("device to other device", _COPY, device, peer),
        Benchmark(
            f"copy: C memmove, {size // _MIB} MiB",
            "cpu copy's bandwidth",
            lambda effort: compare(_memmove(size), _reference(size), effort).inverted(),
        ),
    ]


def _reference(size: int) -> Subject:
    return on_cpu(
        _COPY, lambda device: {"source": _bytes(size, device), "destination": _bytes(size, device)}
    )


def _memmove(size: int) -> Subject:
    source, destination = _bytes(size, CPU), _bytes(size, CPU)
    names: Names = {
        "memmove": ctypes.memmove,
        "destination": destination.data_ptr(),
        "source": source.data_ptr(),
        "size": size,
        "owners": (source, destination),
    }
    return Subject("memmove(destination, source, size)", names, CPU)


def _bytes(size: int, device: torch.device) -> torch.Tensor:
    """Returns memory whose pages have all been touched."""
    return torch.ones(size, dtype=torch.uint8).to(device)
