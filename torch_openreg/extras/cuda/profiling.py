"""NVTX, the runtime library's Python module, and ``ProfilerActivity.CUDA``."""

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import torch
from torch._C._profiler import ProfilerActivity

from torch_openreg import _C
from torch_openreg.extras.profiler import profiler
from torch_openreg.openreg import memory

__all__ = ["NVTX", "RUNTIME_LIBRARY", "install"]


def _device_range_start(message: str, stream: int) -> Any:
    raise NotImplementedError(
        f"torch.cuda.nvtx._device_range_start: expected a range of the host, got {message!r} "
        f"on stream {stream:#x}; use torch.cuda.nvtx.range_start"
    )


NVTX = SimpleNamespace(
    rangePushA=profiler.range_push,
    rangePop=profiler.range_pop,
    rangeStartA=profiler.range_start,
    rangeEnd=profiler.range_end,
    markA=profiler.mark,
    deviceRangeStart=_device_range_start,
    deviceRangeEnd=_device_range_start,
)


class _CudaError(IntEnum):
    """``cudaError_t``; as in torch, one number has a name, and all are allowed."""

    success = 0

    @classmethod
    def _missing_(cls, value: object) -> "_CudaError | None":
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_ = f"cudaError({value})"
        member._value_ = value
        return member


# Numbers of CUDA's errors, which the runtime library returns.
_INVALID_VALUE = 1
_INVALID_RESOURCE_HANDLE = 400
_HOST_MEMORY_ALREADY_REGISTERED = 712
_HOST_MEMORY_NOT_REGISTERED = 713

# Texts that the table of the runtime does not have.
_TEXTS = {
    _HOST_MEMORY_ALREADY_REGISTERED: "part or all of the requested memory range is already mapped",
    _HOST_MEMORY_NOT_REGISTERED: "pointer does not correspond to a registered memory region",
}


def _start() -> int:
    profiler.start()
    return 0


def _stop() -> int:
    profiler.stop()
    return 0


def _error_string(error: int) -> str:
    texts = {number: text for _, number, text in _C._error_table()} | _TEXTS
    return texts.get(int(error), "unrecognized error code")


def _create_stream(address: int) -> int:
    """Writes the handle of a new stream of the current device to an address of the host."""
    if not address:
        return _INVALID_VALUE
    torch.cuda._lazy_init()
    ctypes.c_uint64.from_address(address).value = _C._create_external_stream(0, -1)
    return 0


def _destroy_stream(handle: int) -> int:
    try:
        _C._destroy_external_stream(handle)
    except RuntimeError:
        return _INVALID_RESOURCE_HANDLE
    return 0


def _register_memory(address: int, size: int, flags: int) -> int:
    del flags  # they say for which devices it is, and how they are to see it
    if not address or size <= 0:
        return _INVALID_VALUE
    return 0 if _C._register_host_memory(address, size) else _HOST_MEMORY_ALREADY_REGISTERED


def _unregister_memory(address: int) -> int:
    # The program remains responsible for memory that copies use, as before.
    return 0 if _C._unregister_host_memory(address) else _HOST_MEMORY_NOT_REGISTERED


# What torch offers of CUDA's runtime as ``torch.cuda.cudart()``.
RUNTIME_LIBRARY = SimpleNamespace(
    cudaError=_CudaError,
    cudaGetErrorString=_error_string,
    cudaMemGetInfo=memory.mem_get_info,
    cudaProfilerStart=_start,
    cudaProfilerStop=_stop,
    cudaStreamCreate=_create_stream,
    cudaStreamDestroy=_destroy_stream,
    cudaHostRegister=_register_memory,
    cudaHostUnregister=_unregister_memory,
)


def _supported_activities() -> set[ProfilerActivity]:
    return {ProfilerActivity.CPU, ProfilerActivity.CUDA}


def install() -> None:
    """Makes torch's profiler offer CUDA's activities, and NVTX call our ranges."""
    bindings: Any = torch._C
    bindings._nvtx = NVTX
    bindings._cudart = RUNTIME_LIBRARY
    nvtx: Any = torch.cuda.nvtx
    nvtx._nvtx = NVTX
    for module in (torch._C._autograd, torch.autograd, torch.autograd.profiler, torch.profiler):
        module._supported_activities = _supported_activities  # type: ignore[attr-defined]
