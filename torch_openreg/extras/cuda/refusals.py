"""What needs real CUDA, where the process would crash or torch's own text would mislead."""

import sys
from typing import Any, NoReturn

import torch

from torch_openreg._imports import after_import

__all__ = ["install"]


def _compile_kernel(kernel_source: str, kernel_name: str, *_: Any, **options: Any) -> NoReturn:
    """Replaces ``torch.cuda._compile_kernel``, which searches for CUDA's compiler."""
    del kernel_source, options
    raise NotImplementedError(
        f"torch.cuda._compile_kernel: expected a kernel in C++ or Python, got {kernel_name!r} in "
        "CUDA C++; there is no compiler for CUDA kernels, so register it with torch.library"
    )


def _forget_compiler() -> None:
    """Makes torch find no ``nvcc``, which it searches for if ``torch.version.cuda`` is set.

    What that compiles does not run here. Programs build their extensions if torch has found one.
    """
    extensions: Any = sys.modules["torch.utils.cpp_extension"]
    extensions.CUDA_HOME = None


def install() -> None:
    """Installs the functions that raise errors."""
    cuda: Any = torch.cuda
    cuda._compile_kernel = _compile_kernel
    after_import("torch.utils.cpp_extension", _forget_compiler)
