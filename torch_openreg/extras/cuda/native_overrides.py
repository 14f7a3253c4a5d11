"""torch's own overrides of CUDA's operators: kernels in Triton and CuTe, for GPUs.

``torch._native`` registers them at the end of ``import torch``, for the dispatch key of CUDA, if
the packages that they need are installed. Where the library serves that key, they would take calls
from its kernels and fail, as there is no driver.
"""

from typing import Any

from torch_openreg._imports import after_import

__all__ = ["keep_out"]


def keep_out() -> None:
    """Removes the overrides: now, if torch has registered them, or as soon as it has.

    Called before the native library is loaded, whose kernels are not to override others: the
    dispatcher would warn of it.
    """
    after_import("torch._native", _deregister)


def _deregister() -> None:
    from torch._native import registry

    module: Any = registry
    module.deregister_op_overrides(disable_dispatch_keys="CUDA")
