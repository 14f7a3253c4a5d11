"""The functions ``torch._C._cuda_*``, over our own bindings.

Each does what its namesake in a build with CUDA does. Arguments are positional or have the names
that ``torch.cuda`` uses.
"""

import sys
from collections.abc import Collection, Sequence
from typing import Any

import torch

from torch_openreg import _C
from torch_openreg.extras.cuda.bases import handle_of, stream_of_handle
from torch_openreg.extras.cuda.properties import (
    CudaDeviceProperties,
    architectures,
    device_properties,
)
from torch_openreg.openreg import memory
from torch_openreg.openreg._utils import _setting
from torch_openreg.openreg.initialization import is_initialized

__all__ = ["SUPPLIED", "exchange_device", "maybe_exchange_device"]

_StreamId = tuple[int, int, int]

# --- Initialization and devices


def _init() -> None:
    _C._init()
    cuda: Any = torch.cuda
    cuda.default_generators = tuple(
        _C._get_default_generator(index) for index in range(_C._get_device_count())
    )
    cuda._get_device_properties = device_properties
    if _setting("OPENREG_CUDA_NOTICE") == "1":
        sys.stderr.write(
            "torch_openreg: CUDA is emulated on the CPU; speeds and numbers are not a GPU's "
            "(OPENREG_CUDA_NOTICE=0 silences this line)\n"
        )


def _device_count() -> int:
    """Returns the number of devices; until the first use, from the current environment."""
    return _C._get_device_count() if _C._are_settings_read() else _C._review_settings()[0]


def _compiled_version() -> int:
    """Returns the version of CUDA as its headers write it, 12080 of 12.8; 0 if none was given."""
    major, _, minor = (torch.version.cuda or "0.0").partition(".")
    return int(major) * 1000 + int(minor) * 10


def exchange_device(device: int) -> int:
    """Makes a device current and returns the previous one; for a negative index only returns -1."""
    if device < 0:
        return -1
    torch.cuda._lazy_init()
    return _C._exchange_device(device)


def maybe_exchange_device(device: int) -> int:
    """As ``exchange_device``; a separate function, since Dynamo distinguishes the two."""
    return exchange_device(device)


def _get_device() -> int:
    return _C._get_device()


def _set_device(device: int) -> None:
    torch.cuda._lazy_init()
    _C._set_device(device)


def _synchronize() -> None:
    _C._device_synchronize(-1)


def _ipc_collect() -> None:
    _C._collect_shared()


# --- Streams


def _raw_stream(device: int) -> int:
    return handle_of(_C._current_stream(device))


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    _C._set_stream(stream_id, device_index, device_type)
    _C._set_device(device_index)


def _stream_from_external(handle: int, device: int) -> _StreamId:
    return stream_of_handle(handle, device)


def _is_capturing() -> bool:
    return is_initialized() and _C._is_stream_capturing(*_C._current_stream(-1))


def _sleep(cycles: int) -> None:
    _C._sleep(cycles)


# --- Memory


def _enable_cache(value: bool) -> None:
    if not value:
        raise NotImplementedError(
            "torch._C._cuda_cudaCachingAllocator_enable: expected True, got False: the cache "
            "cannot be disabled; to find uses of freed memory, set OPENREG_MEMORY_POISON=1"
        )


def _raw_alloc(size: int, stream: int) -> int:
    name = _C._current_stream(-1)
    if stream != handle_of(name):
        name = stream_of_handle(stream, -1)
    return _C._raw_allocate(size, *name)


def _memory_stats(device: int) -> dict[str, Any]:
    return memory.memory_stats_as_nested_dict(device)


def _memory_snapshot(selection: tuple[int, int, bool] | None = None) -> dict[str, Any]:
    if selection is None:
        return memory._snapshot()
    *pool, includes_traces = selection
    snapshot = memory._snapshot() if includes_traces else {"device_traces": []}
    return {**snapshot, "segments": memory.memory_snapshot((pool[0], pool[1]))}


def _record_memory_history(
    enabled: Any,
    context: Any,
    stacks: str,
    max_entries: int,
    clear_history: bool,
    compile_context: bool,
    global_record_annotations: bool,
    skip_actions: Sequence[str] = (),
    record_pinned_host_memory: bool = False,  # and the next: since torch 2.14
    record_cuda: bool = True,
) -> None:
    del compile_context, global_record_annotations  # torch.compile's own annotations: none here
    memory._record_memory_history(
        enabled,
        context,
        stacks,  # type: ignore[arg-type]
        max_entries,
        clear_history=clear_history,
        skip_actions=skip_actions,
        record_pinned_host_memory=record_pinned_host_memory,
        record_device_memory=record_cuda,
    )


def _record_memory_history_legacy(
    enabled: bool,
    record_context: bool,
    max_entries: int,
    records_context_of_events: bool,
    record_context_cpp: bool,
    clear_history: bool,
    compile_context: bool,
    global_record_annotations: bool,
    skip_actions: Sequence[str] = (),
    record_pinned_host_memory: bool = False,  # and the next: since torch 2.15
    record_cuda: bool = True,
) -> None:
    context = None
    if record_context:
        context = "all" if records_context_of_events else "state"
    _record_memory_history(
        "all" if enabled else None,
        context,
        "all" if record_context_cpp else "python",
        max_entries,
        clear_history,
        compile_context,
        global_record_annotations,
        skip_actions,
        record_pinned_host_memory,
        record_cuda,
    )


def _allocation_traceback(address: int) -> list[dict[str, Any]] | None:
    for segment in memory.memory_snapshot():
        if segment["address"] <= address < segment["address"] + segment["total_size"]:
            for block in segment["blocks"]:
                if block["address"] == address and block["state"] == "active_allocated":
                    frames: list[dict[str, Any]] | None = block.get("frames")
                    return frames
    return None


def _end_allocate_to_pool(device: int, pool: tuple[int, int]) -> None:
    _C._end_allocate_on_thread(device, pool)


def _release_pool(device: int, pool: tuple[int, int]) -> None:
    # The use of the pool that began on this thread ended with it.
    del device, pool


def _check_pool_live_allocations(
    device: int, pool: tuple[int, int], addresses: Collection[int]
) -> bool:
    """Returns whether the tensors in a pool are those at these addresses, and no others."""
    live = {
        block["address"]
        for segment in memory.memory_snapshot(pool)
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    return live == set(addresses)


# --- Libraries of CUDA: there are none


def _nothing_to_clear() -> None:
    return None


class _Preference:
    """Which of CUDA's libraries a program prefers: kept, without effect.

    torch's own functions refuse what this build was not compiled with.

    Args:
        backend: The first preference, which environment variables may set.
        default: The backend that stands for ``Default``.
    """

    def __init__(self, backend: Any, default: Any) -> None:
        self._backend = backend
        self._default = default

    def get(self) -> Any:
        return self._backend

    def set(self, backend: Any) -> None:
        self._backend = self._default if backend.name == "Default" else backend


_linalg = _Preference(
    torch._C._get_linalg_preferred_backend(), default=torch._C._LinalgBackend.Default
)
_blas = _Preference(torch._C._get_blas_preferred_backend(), default=torch._C._BlasBackend.Cublas)


SUPPLIED: dict[str, Any] = {
    "_CudaDeviceProperties": CudaDeviceProperties,
    "_cuda_allocationTraceback": _allocation_traceback,
    "_cuda_attach_out_of_memory_observer": _C._observe_out_of_memory,
    "_cuda_beginAllocateCurrentThreadToPool": _C._begin_allocate_on_thread,
    "_cuda_canDeviceAccessPeer": _C._device_can_access_peer,
    "_cuda_clearCublasWorkspaces": _nothing_to_clear,
    "_cuda_cudaCachingAllocator_enable": _enable_cache,
    "_cuda_getMemoryMetadata": _C._memory_metadata,
    "_cuda_setMemoryMetadata": _C._set_memory_metadata,
    "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
    "_cuda_cudaCachingAllocator_raw_alloc": _raw_alloc,
    "_cuda_cudaCachingAllocator_raw_delete": _C._raw_free,
    "_cuda_emptyCache": memory.empty_cache,
    "_cuda_checkPoolLiveAllocations": _check_pool_live_allocations,
    "_cuda_endAllocateToPool": _end_allocate_to_pool,
    "_cuda_exchangeDevice": exchange_device,
    "_cuda_getAllocatorBackend": lambda: "native",
    "_cuda_getArchFlags": architectures,
    "_cuda_getCompiledVersion": _compiled_version,
    "_cuda_getCublasLtWorkspaceSize": lambda: 0,
    "_cuda_getCublasWorkspaceSize": lambda: 0,
    "_cuda_getCurrentRawStream": _raw_stream,
    "_cuda_getCurrentStream": _C._current_stream,
    "_cuda_getDefaultStream": _C._default_stream,
    "_cuda_getDevice": _get_device,
    "_cuda_getDeviceCount": _device_count,
    "_cuda_getMemoryFraction": _C._memory_fraction,
    "_cuda_getStreamFromExternal": _stream_from_external,
    "_cuda_get_sync_debug_mode": _C._sync_debug_mode,
    "_cuda_hasPrimaryContext": _C._is_device_active,
    "_cuda_hostMemoryStats": memory.host_memory_stats_as_nested_dict,
    "_cuda_init": _init,
    "_cuda_ipc_collect": _ipc_collect,
    "_cuda_isCurrentStreamCapturing": _is_capturing,
    "_cuda_isHistoryEnabled": memory._is_recording_history,
    "_cuda_isInBadFork": _C._is_in_bad_fork,
    "_cuda_maybeExchangeDevice": maybe_exchange_device,
    "_cuda_memoryMetadataSupported": lambda: False,
    "_cuda_memorySnapshot": _memory_snapshot,
    "_cuda_memoryStats": _memory_stats,
    "_cuda_record_memory_history": _record_memory_history,
    "_cuda_record_memory_history_legacy": _record_memory_history_legacy,
    "_cuda_releasePool": _release_pool,
    "_cuda_resetAccumulatedHostMemoryStats": memory.reset_accumulated_host_memory_stats,
    "_cuda_resetAccumulatedMemoryStats": memory.reset_accumulated_memory_stats,
    "_cuda_resetCublasLtWorkspaceSize": _nothing_to_clear,
    "_cuda_resetCublasWorkspaceSize": _nothing_to_clear,
    "_cuda_resetPeakHostMemoryStats": memory.reset_peak_host_memory_stats,
    "_cuda_resetPeakMemoryStats": memory.reset_peak_memory_stats,
    "_cuda_setDevice": _set_device,
    "_cuda_setMemoryFraction": _C._set_memory_fraction,
    "_cuda_setStream": _set_stream,
    "_cuda_set_sync_debug_mode": _C._set_sync_debug_mode,
    "_cuda_sleep": _sleep,
    "_cuda_synchronize": _synchronize,
    "_get_blas_preferred_backend": _blas.get,
    "_get_linalg_preferred_backend": _linalg.get,
    "_host_emptyCache": memory.empty_host_cache,
    "_set_blas_preferred_backend": _blas.set,
    "_set_linalg_preferred_backend": _linalg.set,
}
