"""Names of ``torch._C`` in builds with CUDA that are not provided, with the reasons."""

from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["LEFT_OUT", "REFUSALS", "REFUSED"]

_NO_ALLOCATOR = "torch_openreg has one allocator, which cannot be replaced; use torch.cuda.MemPool"
_NO_LIBRARY = "the device does not use CUDA's libraries; use torch's own operators"
_NO_TUNING = "there are no CUDA kernels to tune; leave torch.cuda.tunable off"
_NO_TREES = "torch.compile(backend='cudagraphs') needs CUDA's allocator; use torch.cuda.graph"

# Called by programs: they raise NotImplementedError with the reason.
REFUSED: dict[str, str] = {
    "_cuda_CUDAAllocator": _NO_ALLOCATOR,
    "_cuda_CUDAAllocator_AllocatorState": _NO_TREES,
    "_cuda_annotateMemory": "allocations have no metadata; record stacks instead",
    "_cuda_beginAllocateCurrentStreamToPool": _NO_TREES,
    "_cuda_beginAllocateToPool": _NO_TREES,
    "_cuda_changeCurrentAllocator": _NO_ALLOCATOR,
    "_cuda_cudaHostAllocator": _NO_ALLOCATOR,
    "_cuda_customAllocator": _NO_ALLOCATOR,
    "_cuda_getAllocator": _NO_ALLOCATOR,
    "_cuda_getCheckpointState": _NO_TREES,
    "_cuda_getCurrentBlasHandle": _NO_LIBRARY,
    "_cuda_getCurrentSolverHandle": _NO_LIBRARY,
    "_cuda_get_conv_benchmark_empty_cache": _NO_TREES,
    "_cuda_jiterator_compile_and_launch_kernel": "there is no compiler for CUDA kernels; write the "
    "function with torch's operators",
    "_cuda_setCheckpointPoolState": _NO_TREES,
    "_cuda_setCublasLtWorkspaceSize": _NO_LIBRARY,
    "_cuda_setCublasWorkspaceSize": _NO_LIBRARY,
    "_cuda_tunableop_pop_dynamic_dims_mask": _NO_TUNING,
    "_cuda_tunableop_push_dynamic_dims_mask": _NO_TUNING,
    "_cuda_tunableop_wildcard_fallback_enable": _NO_TUNING,
    "_cuda_tunableop_wildcard_fallback_is_enabled": _NO_TUNING,
}

# Not set: code that uses them first checks for a library that is not available.
LEFT_OUT: dict[str, str] = {
    "_cuda_getHipblasltVersion": "asked for where torch.version.hip is set",
    "_cuda_get_cudnn_benchmark_limit": "asked for where cuDNN is",
    "_cuda_set_cudnn_benchmark_limit": "asked for where cuDNN is",
}


def _refusal(name: str, reason: str) -> Callable[..., Any]:
    def refuse(*arguments: object, **keywords: object) -> NoReturn:
        raise NotImplementedError(f"torch._C.{name}: not available on emulated CUDA: {reason}")

    refuse.__name__ = name
    return refuse


class _Allocator:
    """Replaces torch's class of allocators: annotations may name it, its constructor raises."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise NotImplementedError(
            f"torch._C._cuda_CUDAAllocator: not available on emulated CUDA: {_NO_ALLOCATOR}"
        )


REFUSALS: dict[str, Any] = {name: _refusal(name, reason) for name, reason in REFUSED.items()} | {
    "_cuda_CUDAAllocator": _Allocator
}
