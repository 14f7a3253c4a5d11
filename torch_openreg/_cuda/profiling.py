"""NVTX, the runtime library's Python module, and ``ProfilerActivity.CUDA``."""

from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch._C._profiler import ProfilerActivity

from torch_openreg import _C
from torch_openreg.openreg import memory, profiler

__all__ = ["NVTX", "RUNTIME_LIBRARY", "install"]


def _device_range_start(message: str, stream: int) -> Any:
    raise NotImplementedError(
        f"torch.cuda.nvtx._device_range_start: expected a range of the host, got {message!r} in "
        f"stream {stream:#x}; ranges of torch_openreg are those of host threads"
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
    success = 0


def _start() -> int:
    profiler.start()
    return 0


def _stop() -> int:
    profiler.stop()
    return 0


def _error_string(error: int) -> str:
    texts = {number: text for _, number, text in _C._error_table()}
    return texts.get(int(error), "unrecognized error code")


def _refusal(name: str, instead: str) -> Callable[..., int]:
    def refuse(*arguments: object) -> NoReturn:
        raise NotImplementedError(f"cudart.{name}: not available on emulated CUDA: use {instead}")

    return refuse


# What torch offers of CUDA's runtime as ``torch.cuda.cudart()``.
RUNTIME_LIBRARY = SimpleNamespace(
    cudaError=_CudaError,
    cudaGetErrorString=_error_string,
    cudaMemGetInfo=memory.mem_get_info,
    cudaProfilerStart=_start,
    cudaProfilerStop=_stop,
    cudaStreamCreate=_refusal("cudaStreamCreate", "torch.cuda.Stream"),
    cudaStreamDestroy=_refusal("cudaStreamDestroy", "torch.cuda.Stream"),
    cudaHostRegister=_refusal("cudaHostRegister", "Tensor.pin_memory"),
    cudaHostUnregister=_refusal("cudaHostUnregister", "Tensor.pin_memory"),
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
