"""The torch and the machine on which the device type is to be CUDA, and what is taken away there.

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

from torch_openreg._device_name import DEVICE_NAME
from torch_openreg._loading import DEVICE_TYPE_VARIABLE, RegistrationError
from torch_openreg._version import release_of

__all__ = ["check_machine", "has_cuda", "remove_names"]

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


def check_machine() -> None:
    """Raises RegistrationError if torch itself serves the device type CUDA on this machine."""
    if torch.version.hip is not None:
        raise RegistrationError(
            "Device type cuda needs a build of torch for CUDA or for the CPU, but torch "
            f"{torch.__version__} is one for ROCm. Use the device {DEVICE_NAME!r} beside it, or "
            f"install torch's CPU build: pip install --force-reinstall --no-deps "
            f"'torch=={release_of(str(torch.__version__))}.*' "
            "--index-url https://download.pytorch.org/whl/cpu"
        )
    if not has_cuda() or _is_asked_to_hide_gpus():
        return
    if count := _usable_gpus():
        raise RegistrationError(
            f"{DEVICE_TYPE_VARIABLE}=cuda takes the place of GPUs, but this machine has {count} "
            f"that torch {torch.__version__} can use. OPENREG_CUDA_OVER_GPU=1 hides them from this "
            "process"
        )


def has_cuda() -> bool:
    """Whether torch was built with CUDA; asked before the library replaces what shows it."""
    return torch.version.cuda is not None


def _usable_gpus() -> int:
    """Returns how many GPUs a program could use, without making a context on one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != _SUCCESS or driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return 0
    return count.value


def _is_asked_to_hide_gpus() -> bool:
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
