"""A build of torch with CUDA: the check for a GPU, and what the build brings that is taken away.

Note [Builds with CUDA]
    In such a build, ``torch._C`` has the names over CUDA's libraries. Those that this package
    provides or refuses replace them, as they are added in a build without CUDA. The rest is
    removed, so that programs find what they find there. ``csrc/extras/cuda/TakeOver.cpp`` does
    the same for the kernels of operators. No function of CUDA is called.
"""

import ctypes
import os
from typing import Any

import torch

__all__ = ["has_cuda", "is_asked_to_hide_gpus", "remove_names", "usable_gpus"]

# Names of torch._C that are of CUDA's libraries, and that ``torch.cuda`` looks up before each use.
_REMOVED = (
    "_CUDAGreenContext",
    "_CUDAPluggableAllocator",
    "_FastCudaLauncher",
    "_StaticCudaLauncher",
    "_WorkqueueScope",
    "_construct_CUDA_Tensor_From_Storage_And_Metadata",
    "_cuda_getHipblasltVersion",
    "_cuda_get_cudnn_benchmark_limit",
    "_cuda_set_cudnn_benchmark_limit",
    "_cudnn",
    "_cudnn_set_conv_benchmark_empty_cache",
    "_cusparselt",
    "_nccl_all_gather",
    "_nccl_all_reduce",
    "_nccl_broadcast",
    "_nccl_init_rank",
    "_nccl_reduce",
    "_nccl_reduce_scatter",
    "_nccl_unique_id",
)

_SUCCESS = 0  # of CUDA's driver


def has_cuda() -> bool:
    """Whether torch was built with CUDA; asked before the library replaces what shows it."""
    return torch.version.cuda is not None


def usable_gpus() -> int:
    """Returns how many GPUs a program could use, without making a context on one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != _SUCCESS or driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return 0
    return count.value


def is_asked_to_hide_gpus() -> bool:
    """Whether emulated devices are to take the place of usable GPUs."""
    return os.environ.get("OPENREG_CUDA_OVER_GPU") == "1"


def remove_names() -> None:
    """Removes what is left of the build's own names, and says that its libraries are missing."""
    bindings: Any = torch._C
    for name in _REMOVED:
        if hasattr(bindings, name):
            delattr(bindings, name)
    bindings._has_cudnn = bindings._has_cusparselt = bindings._has_magma = False
    cuda: Any = torch.cuda
    cuda.has_magma = False
    # They asked for the libraries when they were imported.
    for module in (torch.backends.cudnn, torch.backends.cusparselt):
        module.version.__globals__["_init"] = lambda: False
    # TorchScript's fuser generates CUDA C++.
    bindings._jit_override_can_fuse_on_gpu(False)
