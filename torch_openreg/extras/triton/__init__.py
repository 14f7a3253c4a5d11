"""Compiles Triton kernels for devices that are parts of a CPU's memory."""

import os
from types import ModuleType

from torch_openreg._imports import import_after
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["register"]


def register(module: ModuleType) -> None:
    """Has torch.compile take kernels of Triton. Triton itself finds ``triton_openreg``.

    Args:
        module: The module ``torch.openreg``, to which nothing is added.
    """
    del module
    if DEVICE_TYPE == "cuda":
        # Triton would find two drivers: NVIDIA's goes by torch.cuda.is_available().
        os.environ.setdefault("TRITON_DEFAULT_BACKEND", "openreg")
    import_after("torch._dynamo.variables.builder", f"{__name__}._programs")
    import_after("torch._inductor.runtime.triton_heuristics", f"{__name__}._target")
