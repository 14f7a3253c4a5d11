"""Memory: statistics, snapshots and history of the caching allocator, and free memory.

All sizes are in bytes. Before the device is used, sizes are 0 and statistics are empty. An argument
``device`` may be an index, a string such as ``"openreg:1"``, a ``torch.device``, or None for the
current device; a device that does not exist raises RuntimeError.

The functions with an underscore have the names of their counterparts in ``torch.cuda.memory``. They
are meant to be used.
"""

import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch._utils import _augment_memory_snapshot_stack_traces
from torch.types import Device
from typing_extensions import deprecated

from torch_openreg import _C
from torch_openreg._torch_release import HAS_PINNED_HISTORY
from torch_openreg.openreg._utils import (
    DEVICE_TYPE,
    _boolean,
    _checked_index,
    _integer,
    _named,
    _pool_id,
    _text,
)
from torch_openreg.openreg.devices import device_count
from torch_openreg.openreg.events import _check_stream
from torch_openreg.openreg.initialization import _lazy_init, is_initialized
from torch_openreg.openreg.streams import current_stream

__all__ = [
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "empty_host_cache",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


def _has_statistics() -> bool:
    return is_initialized() and torch._C._accelerator_isAllocatorInitialized()


def empty_cache() -> None:
    """Frees cached memory that no tensor uses, for other users of the devices."""
    if _has_statistics():
        torch._C._accelerator_emptyCache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns the free and the total memory of a device, in bytes.

    Cached memory counts as used. Because of fragmentation, a single allocation may be limited to
    less than the free memory.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    _lazy_init()
    index = _checked_index("torch.openreg.mem_get_info", device)
    return torch._C._accelerator_getMemoryInfo(index)


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """Returns the statistics of :func:`memory_stats` as dictionaries within a dictionary.

    Args:
        device: The device; None for the current one.
    """
    return _nested_stats("torch.openreg.memory_stats_as_nested_dict", device)


def _nested_stats(operation: str, device: Device) -> dict[str, Any]:
    index = _checked_index(operation, device)
    if not _has_statistics():
        return {}
    stats = torch._C._accelerator_getDeviceStats(index)
    return {**stats, "reserved_bytes_by_private_pools": _C._private_pool_stats(index)}


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Returns the statistics of a device's allocator, sorted by name. Sizes are in bytes.

    The names are ``"<quantity>.<pool>.<value>"`` with

    - quantity: ``allocation``, ``segment``, ``active``, ``inactive_split`` (numbers) and
      ``allocated_bytes``, ``reserved_bytes``, ``active_bytes``, ``inactive_split_bytes``,
      ``requested_bytes``;
    - pool: ``all``, ``small_pool`` (allocations up to 1 MiB), ``large_pool``;
    - value: ``current``, ``peak``, and the totals ``allocated`` and ``freed``;

    ``"reserved_bytes_by_private_pools.<id>.<pool>.<value>"`` for each private pool there was,
    ``"oversize_allocations.<value>"`` and ``"oversize_segments.<value>"``, and the counters
    ``num_alloc_retries``, ``num_device_alloc``, ``num_device_free``, ``num_ooms`` and
    ``num_sync_all_streams``.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    return _flattened(_nested_stats("torch.openreg.memory_stats", device))


def _flattened(nested: dict[str, Any]) -> dict[str, Any]:
    flat: list[tuple[str, Any]] = []

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else str(key), inner)
        else:
            flat.append((prefix, value))

    flatten("", nested)
    return OrderedDict(sorted(flat))


def _statistic(operation: str, device: Device, quantity: str, value: str) -> int:
    stats = _nested_stats(operation, device)
    return int(stats[quantity]["all"][value]) if stats else 0


def memory_allocated(device: Device = None) -> int:
    """Returns how many bytes of a device's memory tensors occupy.

    Sizes are rounded up to the allocator's blocks, multiples of 128 bytes, or of 512 bytes with the
    device type cuda.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    return _statistic("torch.openreg.memory_allocated", device, "allocated_bytes", "current")


def max_memory_allocated(device: Device = None) -> int:
    """Returns the peak of :func:`memory_allocated` in bytes.

    It is that since the process began, or since :func:`reset_peak_memory_stats`.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    return _statistic("torch.openreg.max_memory_allocated", device, "allocated_bytes", "peak")


def memory_reserved(device: Device = None) -> int:
    """Returns how many bytes of a device's memory the allocator holds, for tensors and as a cache.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    return _statistic("torch.openreg.memory_reserved", device, "reserved_bytes", "current")


def max_memory_reserved(device: Device = None) -> int:
    """Returns the peak of :func:`memory_reserved` in bytes.

    It is that since the process began, or since :func:`reset_peak_memory_stats`.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    return _statistic("torch.openreg.max_memory_reserved", device, "reserved_bytes", "peak")


@deprecated(
    f"torch.{DEVICE_TYPE}.memory_cached has been renamed to torch.{DEVICE_TYPE}.memory_reserved",
    category=FutureWarning,
)
def memory_cached(device: Device = None) -> int:
    """Deprecated, as in ``torch.cuda``: :func:`memory_reserved`, in bytes."""
    return _statistic("torch.openreg.memory_cached", device, "reserved_bytes", "current")


@deprecated(
    f"torch.{DEVICE_TYPE}.max_memory_cached has been renamed to "
    f"torch.{DEVICE_TYPE}.max_memory_reserved",
    category=FutureWarning,
)
def max_memory_cached(device: Device = None) -> int:
    """Deprecated, as in ``torch.cuda``: :func:`max_memory_reserved`, in bytes."""
    return _statistic("torch.openreg.max_memory_cached", device, "reserved_bytes", "peak")


def reset_peak_memory_stats(device: Device = None) -> None:
    """Resets the peaks of a device's statistics to the current values.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    _reset_peaks("torch.openreg.reset_peak_memory_stats", device)


def _reset_peaks(operation: str, device: Device) -> None:
    index = _checked_index(operation, device)
    if _has_statistics():
        torch._C._accelerator_resetPeakStats(index)


@deprecated(
    f"torch.{DEVICE_TYPE}.reset_max_memory_allocated now calls "
    f"torch.{DEVICE_TYPE}.reset_peak_memory_stats, which resets all peak memory stats",
    category=FutureWarning,
)
def reset_max_memory_allocated(device: Device = None) -> None:
    """Deprecated, as in ``torch.cuda``: :func:`reset_peak_memory_stats`, so all peaks are reset."""
    _reset_peaks("torch.openreg.reset_max_memory_allocated", device)


@deprecated(
    f"torch.{DEVICE_TYPE}.reset_max_memory_cached now calls "
    f"torch.{DEVICE_TYPE}.reset_peak_memory_stats, which resets all peak memory stats",
    category=FutureWarning,
)
def reset_max_memory_cached(device: Device = None) -> None:
    """Deprecated, as in ``torch.cuda``: :func:`reset_peak_memory_stats`, so all peaks are reset."""
    _reset_peaks("torch.openreg.reset_max_memory_cached", device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets the totals (``allocated`` and ``freed``) and the counters of a device to zero.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
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
        device: The device; None for the current one.
        abbreviated: Whether to omit the lines for the small and the large pool.

    Raises:
        TypeError: ``abbreviated`` is not a bool.
        RuntimeError: The device does not exist.
    """
    index = _checked_index("torch.openreg.memory_summary", device)
    _boolean("torch.openreg.memory_summary", "abbreviated", abbreviated)
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
        f"Memory of {DEVICE_TYPE}:{index}. Out of memory: {stats.get('num_ooms', 0)} times, "
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


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits the memory that this process may reserve to a share of the device's capacity.

    An allocation beyond it is out of memory, as on a device of that size. Memory that is reserved
    already stays. The limit applies to this process only, since each process has its own devices.

    Args:
        fraction: From 0 to 1, of the capacity that :func:`mem_get_info` gives as the total.
        device: The device; None for the current one.

    Raises:
        TypeError: ``fraction`` is not a float.
        ValueError: ``fraction`` is not from 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError(
            "set_per_process_memory_fraction: expected a float as fraction, got "
            f"{type(fraction).__name__}"
        )
    _lazy_init()
    index = _checked_index("torch.openreg.set_per_process_memory_fraction", device)
    _C._set_memory_fraction(fraction, index)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """Returns the share of a device's capacity that this process may reserve, from 0 to 1.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    _lazy_init()
    index = _checked_index("torch.openreg.get_per_process_memory_fraction", device)
    return _C._memory_fraction(index)


def caching_allocator_alloc(
    size: int, device: Device = None, stream: torch.Stream | None = None
) -> int:
    """Allocates memory that no tensor owns and returns its address.

    For libraries that manage memory themselves and share the cache.

    Args:
        size: How many bytes. 0 gives the address 0.
        device: The device; that of the stream if there is one.
        stream: The stream that uses the memory, the device's current one by default.

    Raises:
        TypeError: ``size`` is not an int, or ``stream`` no stream.
        ValueError: ``size`` is negative or does not fit 64 bits, or ``stream`` is on another
            device.
        torch.OutOfMemoryError: There is not enough memory.
    """
    operation = "torch.openreg.caching_allocator_alloc"
    size = _integer(operation, "size", size)
    if size < 0:
        raise ValueError(f"caching_allocator_alloc: expected a size of at least 0, got {size}")
    _lazy_init()
    if stream is None:
        stream = current_stream(_checked_index(operation, device))
    elif device is not None:
        index = _checked_index(operation, device)
        if index != _check_stream(operation, stream).device_index:
            raise ValueError(
                "caching_allocator_alloc: expected a stream of the device, got device "
                f"{index} and a stream of device {stream.device_index}"
            )
    _check_stream(operation, stream)
    return _C._raw_allocate(size, stream.stream_id, stream.device_index, stream.device_type)


def caching_allocator_delete(address: int) -> None:
    """Frees what :func:`caching_allocator_alloc` returned, to be reused in stream order.

    Args:
        address: The address; 0 is accepted and frees nothing.

    Raises:
        TypeError: The address is not an int.
        ValueError: The address did not come from there, or has been deleted.
    """
    _C._raw_free(
        _integer("torch.openreg.caching_allocator_delete", "address", address, 0, 2**64 - 1)
    )


class MemPool:
    """Private memory: freed blocks of a pool are reused only within it.

    A pool belongs to the device that is current when it is created. Its memory is returned to the
    device when the pool and all tensors in it are freed. Use it with :func:`use_mem_pool`.

    Args:
        use_on_oom: Whether its free memory may be used for an allocation outside of the pool that
            would otherwise raise :class:`torch.OutOfMemoryError`.
        no_split: Whether each block is a whole segment, so that it never neighbors another.
    """

    def __init__(self, *, use_on_oom: bool = False, no_split: bool = False) -> None:
        """Makes an empty pool."""
        for name, value in (("use_on_oom", use_on_oom), ("no_split", no_split)):
            _boolean("torch.openreg.MemPool", name, value)
        _lazy_init()
        self._pool = _C._MemPool(use_on_oom, no_split)

    @property
    def id(self) -> tuple[int, int]:
        """The pool's id, to be passed to graphs and to :func:`memory_snapshot`."""
        return self._pool.id

    @property
    def device(self) -> torch.device:
        """The device whose memory it is."""
        return torch.device(DEVICE_TYPE, self._pool.device)

    def use_count(self) -> int:
        """Returns how many use the pool: this object, each :func:`use_mem_pool`, each graph."""
        return self._pool.use_count()

    def snapshot(self) -> list[dict[str, Any]]:
        """Returns the pool's segments, as :func:`memory_snapshot` does."""
        return memory_snapshot(self.id)


@contextmanager
def use_mem_pool(pool: MemPool, device: Device = None) -> Iterator[None]:
    """Makes this thread's allocations on the pool's device come from the pool.

    Those of other threads, autograd's included, do not.

    Args:
        pool: The pool.
        device: The pool's device, for programs that pass it.

    Raises:
        TypeError: ``pool`` is not a pool.
        ValueError: ``device`` is another device than the pool's.
        RuntimeError: The pool is in use here already, or by another thread.
    """
    if not isinstance(pool, MemPool):
        raise TypeError(f"{_named('torch.openreg.use_mem_pool')}: expected a MemPool, got {pool!r}")
    if device is not None:
        index = _checked_index("torch.openreg.use_mem_pool", device)
        if index != pool.device.index:
            raise ValueError(
                f"use_mem_pool: expected the pool's device {pool.device}, got device {index}"
            )
    _C._begin_allocate_on_thread(pool.device.index, pool.id)
    try:
        yield
    finally:
        _C._end_allocate_on_thread(pool.device.index, pool.id)


def memory_snapshot(mempool_id: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """Returns the memory of the allocators of all devices: a list of segments with their blocks.

    Each segment is a dictionary with ``device``, ``address``, ``total_size``, ``allocated_size``,
    ``active_size``, ``requested_size``, ``stream`` (an id), ``segment_type`` (``"small"`` or
    ``"large"``), ``segment_pool_id``, ``is_expandable``, ``frames`` and ``blocks``. Each block has
    ``address``, ``size``, ``requested_size``, ``state`` (``"active_allocated"``,
    ``"active_awaiting_free"`` while another stream needs it, or ``"inactive"``) and ``frames``:
    the stack that allocated it, if it was recorded.

    Args:
        mempool_id: Only the segments of the private pool with this id; None for all.

    Raises:
        TypeError: ``mempool_id`` is not the id of a memory pool.
    """
    if mempool_id is not None:
        _pool_id("torch.openreg.memory_snapshot", "mempool_id", mempool_id)
    return _C._memory_segments(mempool_id or (0, 0)) if is_initialized() else []


def _record_memory_history(
    enabled: Literal["state", "all"] | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "all",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
    skip_actions: Sequence[str] | None = None,
    *,
    record_pinned_host_memory: bool = False,
    record_device_memory: bool = True,
) -> None:
    """Starts or stops recording the allocator's events with their stacks, for all devices.

    Args:
        enabled: ``"state"`` records memory in use, ``"all"`` also every event of the allocator;
            None stops and drops the events: take the snapshot before.
        context: Which stacks to keep: those of memory in use (``"state"``), also of allocations
            that have been freed (``"alloc"``), also of the frees (``"all"``); None: none.
        stacks: Which frames: Python's and TorchScript's (``"python"``), or C++'s as well
            (``"all"``).
        max_entries: How many of the latest events to keep per device.
        device: Accepted for compatibility with ``torch.cuda``; without effect.
        clear_history: Whether to drop earlier events.
        skip_actions: Events not to record, by the names of :func:`_snapshot`.
        record_pinned_host_memory: Whether to record pinned memory, too: with its events for any
            ``enabled``, and without skipped actions. Needs torch 2.14.
        record_device_memory: Whether to record the events of device memory.

    Raises:
        ValueError: A value is not one of those above.
        RuntimeError: Pinned memory is to be recorded, and torch is 2.13.
    """
    _expect_one_of("enabled", enabled, (None, "state", "all"))
    _expect_one_of("context", context, (None, "state", "alloc", "all"))
    _expect_one_of("stacks", stacks, ("python", "all"))
    operation = "torch.openreg.memory._record_memory_history"
    max_entries = _integer(operation, "max_entries", max_entries)
    if max_entries < 0:
        raise ValueError(
            f"_record_memory_history: expected max_entries of at least 0, got {max_entries}"
        )
    _boolean(operation, "clear_history", clear_history)
    if skip_actions is not None and not isinstance(skip_actions, (list, tuple)):
        raise TypeError(
            f"{_named(operation)}: expected a list of skip_actions, got {skip_actions!r}"
        )
    skipped = list(skip_actions or ())
    for action in skipped:
        _expect_one_of("an action to skip", action, _ACTIONS)
    _lazy_init()
    global _history_is_on
    of_pinned_memory = enabled if record_pinned_host_memory else None
    if of_pinned_memory is not None or HAS_PINNED_HISTORY:
        _C._record_pinned_memory_history(
            of_pinned_memory, context, stacks == "all", max_entries, clear_history
        )
    of_devices = enabled if record_device_memory else None
    _C._record_memory_history(
        of_devices, context, stacks == "all", max_entries, clear_history, skipped
    )
    _history_is_on = enabled is not None


_history_is_on = False


def _is_recording_history() -> bool:
    """Returns whether :func:`_record_memory_history` has started and not stopped."""
    return _history_is_on


_ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "oom",
    "snapshot",
)


def _expect_one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(
            f"_record_memory_history: expected {name} to be one of {allowed}, got {value!r}"
        )


def _snapshot(device: Device = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Returns the allocators' segments and their history, in the format of torch's viewer.

    That is ``torch.cuda._memory_viz``, or the page https://pytorch.org/memory_viz. The keys are
    ``segments`` (see :func:`memory_snapshot`); ``device_traces``, one list of events per device;
    ``allocator_settings``; ``external_annotations``, always empty. With torch 2.14 or later there
    are ``host_segments`` and ``host_traces``, of pinned memory, once its history has been recorded.

    An event has ``action`` (``"alloc"``, ``"free_requested"``, ``"free_completed"``,
    ``"segment_alloc"``, ``"segment_free"``, ``"snapshot"`` or ``"oom"``), ``addr`` (or
    ``device_free`` if it is ``"oom"``), ``size``, ``stream``, ``device``, ``pool_id``,
    ``time_us`` (UNIX time) and ``frames``.

    Args:
        device: Accepted for compatibility with ``torch.cuda``; the snapshot is of all devices.
        augment_with_fx_traces: Whether frames of code generated by ``torch.fx`` name the node and
            the line that they came from.
    """
    snapshot: dict[str, Any] = {
        "segments": memory_snapshot(),
        "device_traces": [
            _C._memory_history(index) if is_initialized() else [] for index in range(device_count())
        ],
        "allocator_settings": _C._memory_settings(),
        "external_annotations": [],
    }
    if HAS_PINNED_HISTORY:
        snapshot["host_segments"] = _C._pinned_memory_segments()
        snapshot["host_traces"] = _C._pinned_memory_history()
    if augment_with_fx_traces:
        return dict(_augment_memory_snapshot_stack_traces(snapshot))  # type: ignore[arg-type]
    return snapshot


def _set_allocator_settings(env: str) -> None:
    """Replaces the settings of the allocators, as ``PYTORCH_ALLOC_CONF`` gives them.

    Args:
        env: The settings, such as ``"max_split_size_mb:64,garbage_collection_threshold:0.8"``.

    Raises:
        TypeError: The argument is not a string.
        ValueError: torch has no such key, or the value is invalid.
    """
    torch._C._accelerator_setAllocatorSettings(
        _text("torch.openreg.memory._set_allocator_settings", "env", env)
    )


def _dump_snapshot(
    filename: str | Path = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Writes :func:`_snapshot` to a file, as a pickle.

    Args:
        filename: The file.
        augment_with_fx_traces: As for :func:`_snapshot`.

    Raises:
        TypeError: ``filename`` is not a path.
    """
    if not isinstance(filename, (str, os.PathLike)):
        raise TypeError(
            f"{_named('torch.openreg.memory._dump_snapshot')}: expected a path as filename, got "
            f"{filename!r}"
        )
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with Path(filename).open("wb") as file:
        pickle.dump(snapshot, file)


def empty_host_cache() -> None:
    """Frees cached pinned memory that no tensor uses."""
    if is_initialized():
        torch._C._accelerator_emptyHostCache()


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns the statistics of :func:`host_memory_stats` as dictionaries in a dictionary."""
    return _C._host_memory_stats() if is_initialized() else {}


def host_memory_stats() -> dict[str, Any]:
    """Returns the statistics of the cache of pinned memory, sorted by name.

    Names are ``"<quantity>.<value>"`` with

    - quantity: ``active_requests`` and ``active_bytes`` (in use), ``allocations`` and
      ``allocated_bytes`` (held, in use or not), and values ``current``, ``peak``, ``allocated``,
      ``freed``;
    - quantity: ``host_alloc_time`` and ``host_free_time`` (microseconds spent on allocating and
      freeing) and values ``total``, ``max``, ``min``, ``avg``, ``count``;

    and the counters ``num_host_alloc`` and ``num_host_free``. The cache rounds sizes up to powers
    of two.
    """
    return _flattened(host_memory_stats_as_nested_dict())


def reset_accumulated_host_memory_stats() -> None:
    """Sets the totals of :func:`host_memory_stats` to zero."""
    if is_initialized():
        _C._reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Resets the peaks of :func:`host_memory_stats` to the current values."""
    if is_initialized():
        _C._reset_peak_host_memory_stats()
