"""``torch.compile``: Inductor uses this package's wrapper and pass for CUDA instead of Triton's.

Inductor gets classes only from the module of the device type ``PrivateUse1``; see Note [How
Inductor finds the package] in ``torch_openreg/inductor``. Here they are registered when Inductor
has been imported, which only programs that compile do.

Triton itself runs kernels of programs, by ``triton_openreg``. torch is told that it cannot be used,
so that torch's own kernels in Triton are not chosen.
"""

import functools
import importlib
import os
import sys
from typing import Any

from torch_openreg import _extras
from torch_openreg._imports import after_import

__all__ = ["install"]


def install() -> None:
    """Has the import of Inductor register our device type, and torch find no use for Triton.

    Triton gets our driver: it would find two, as ``torch.cuda.is_available()`` is what NVIDIA's
    goes by.
    """
    if _extras.has("triton"):
        os.environ.setdefault("TRITON_DEFAULT_BACKEND", "openreg")
    after_import("torch._inductor.compile_fx", _register)
    after_import("torch.utils._triton", _disable_triton)


def _register() -> None:
    importlib.import_module("torch_openreg.inductor")


@functools.cache
def _has_triton(*, include_cpu: bool = False) -> bool:
    """Whether Triton has kernels for a device other than ours: since torch 2.15, for the CPU."""
    triton: Any = sys.modules["torch.utils._triton"]
    return include_cpu and bool(triton.has_triton_cpu_backend())


def _disable_triton() -> None:
    triton: Any = sys.modules["torch.utils._triton"]
    replaced, triton.has_triton = triton.has_triton, _has_triton
    # Modules that were imported before this one have the function by its name.
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("has_triton") is replaced:
            module.has_triton = _has_triton  # type: ignore[attr-defined]
