"""What needs real CUDA, where the process would crash or torch's own text would mislead."""

import sys
from typing import Any, NoReturn

import torch

from torch_openreg._imports import after_import

__all__ = ["install"]


def _refuse_gloo() -> None:
    """Keeps ProcessGroupGloo from tensors on CUDA: in a build without CUDA it crashes on them."""
    import torch.distributed.distributed_c10d as c10d

    config: Any = c10d.BackendConfig
    make = config.__init__

    def make_without_gloo_on_cuda(self: Any, backend: Any) -> None:
        make(self, backend)
        if self.device_backend_map.get("cuda") == c10d.Backend.GLOO:
            if "cuda:" in str(backend).lower():
                raise ValueError(
                    f"init_process_group: expected another backend than gloo for cuda, got "
                    f"'{backend}'; gloo's collectives on cuda tensors need a build of torch with "
                    "CUDA, so use nccl for cuda, or backend='gloo' and tensors on the CPU"
                )
            # Collectives on such tensors then raise that no backend serves them.
            del self.device_backend_map["cuda"]

    config.__init__ = make_without_gloo_on_cuda


def _compile_kernel(kernel_source: str, kernel_name: str, *_: Any, **options: Any) -> NoReturn:
    """In the place of ``torch.cuda._compile_kernel``, which looks for CUDA's compiler."""
    del kernel_source, options
    raise NotImplementedError(
        f"torch.cuda._compile_kernel: expected a kernel in C++ or Python, got {kernel_name!r} in "
        "CUDA C++; there is no compiler for CUDA kernels, so register it with torch.library"
    )


def _forget_compiler() -> None:
    """Has torch find no ``nvcc``, which it looks for if ``torch.version.cuda`` is set.

    What that compiles does not run here. Programs build their extensions if torch has found one.
    """
    extensions: Any = sys.modules["torch.utils.cpp_extension"]
    extensions.CUDA_HOME = None


def install() -> None:
    """Puts the refusals in place."""
    _refuse_gloo()
    cuda: Any = torch.cuda
    cuda._compile_kernel = _compile_kernel
    after_import("torch.utils.cpp_extension", _forget_compiler)
