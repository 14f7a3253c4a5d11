"""Memory: what the caching allocator holds, and what is left.

All sizes are bytes. Before the device is used, sizes are 0 and statistics empty. An argument
``device`` is as in :mod:`torch.openreg`; one that does not exist raises RuntimeError.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch.types import Device

from torch_openreg.openreg._utils import _checked_index
from torch_openreg.openreg.initialization import _lazy_init, is_initialized

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]


def _has_statistics() -> bool:
    return is_initialized() and torch._C._accelerator_isAllocatorInitialized()


def empty_cache() -> None:
    """Gives cached memory that no tensor uses back to the devices."""
    if _has_statistics():
        torch._C._accelerator_emptyCache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns free and total memory of a device.

    Cached memory counts as used. Fragmentation may keep one allocation from getting all that is
    free.
    """
    _lazy_init()
    index = _checked_index("torch.openreg.mem_get_info", device)
    return torch._C._accelerator_getMemoryInfo(index)


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """Returns the statistics of :func:`memory_stats` as dictionaries within a dictionary."""
    index = _checked_index("torch.openreg.memory_stats", device)
    return torch._C._accelerator_getDeviceStats(index) if _has_statistics() else {}


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Returns the statistics of a device's allocator, sorted by name.

    Names are ``"<quantity>.<pool>.<value>"`` with

    - quantity: ``allocation``, ``segment``, ``active``, ``inactive_split`` (numbers) and
      ``allocated_bytes``, ``reserved_bytes``, ``active_bytes``, ``inactive_split_bytes``,
      ``requested_bytes``;
    - pool: ``all``, ``small_pool`` (allocations up to 1 MiB), ``large_pool``;
    - value: ``current``, ``peak``, and the totals ``allocated`` and ``freed``;

    ``"oversize_allocations.<value>"`` and ``"oversize_segments.<value>"``, and the counters
    ``num_alloc_retries``, ``num_device_alloc``, ``num_device_free``, ``num_ooms`` and
    ``num_sync_all_streams``.
    """
    flat: list[tuple[str, Any]] = []

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat.append((prefix, value))

    flatten("", memory_stats_as_nested_dict(device))
    return OrderedDict(sorted(flat))


def _statistic(device: Device, name: str) -> int:
    return int(memory_stats(device).get(name, 0))


def memory_allocated(device: Device = None) -> int:
    """Returns how much memory tensors occupy."""
    return _statistic(device, "allocated_bytes.all.current")


def max_memory_allocated(device: Device = None) -> int:
    """Returns the peak of :func:`memory_allocated` since the last reset."""
    return _statistic(device, "allocated_bytes.all.peak")


def memory_reserved(device: Device = None) -> int:
    """Returns how much memory the allocator holds, for tensors and as a cache."""
    return _statistic(device, "reserved_bytes.all.current")


def max_memory_reserved(device: Device = None) -> int:
    """Returns the peak of :func:`memory_reserved` since the last reset."""
    return _statistic(device, "reserved_bytes.all.peak")


def reset_peak_memory_stats(device: Device = None) -> None:
    """Makes the present values the peaks."""
    index = _checked_index("torch.openreg.reset_peak_memory_stats", device)
    if _has_statistics():
        torch._C._accelerator_resetPeakStats(index)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets the totals (``allocated`` and ``freed``) and the counters to zero."""
    index = _checked_index("torch.openreg.reset_accumulated_memory_stats", device)
    if _has_statistics():
        torch._C._accelerator_resetAccumulatedStats(index)


def _format_bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Returns a table of the most useful statistics, for people to read.

    Args:
        device: The device.
        abbreviated: Whether to leave out the lines of the small and the large pool.
    """
    index = _checked_index("torch.openreg.memory_summary", device)
    stats = memory_stats(index)
    quantities = {
        "allocated_bytes": "Allocated memory",
        "requested_bytes": "Requested memory",
        "active_bytes": "Active memory",
        "reserved_bytes": "Reserved memory",
        "inactive_split_bytes": "Cached, not releasable",
        "allocation": "Allocations",
        "active": "Active blocks",
        "segment": "Segments",
    }
    pools = (
        {"all": ""} if abbreviated else {"all": "", "small_pool": "small", "large_pool": "large"}
    )
    values = ("current", "peak", "allocated", "freed")
    lines = [
        f"Memory of openreg:{index}. Out of memory: {stats.get('num_ooms', 0)} times, "
        f"allocations tried twice: {stats.get('num_alloc_retries', 0)}.",
        f"{'':30}" + "".join(f"{value:>14}" for value in values),
    ]
    for quantity, title in quantities.items():
        for pool, label in pools.items():
            name = f"  {label}" if label else title
            numbers = [stats.get(f"{quantity}.{pool}.{value}", 0) for value in values]
            texts = [
                _format_bytes(number) if quantity.endswith("bytes") else str(number)
                for number in numbers
            ]
            lines.append(f"{name:30}" + "".join(f"{text:>14}" for text in texts))
    return "\n".join(lines) + "\n"
