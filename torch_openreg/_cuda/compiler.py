"""``torch.compile``: Inductor gets our wrapper and pass for CUDA, in place of Triton's.

Inductor asks the module of the device type ``PrivateUse1`` for classes, and no other; see Note [How
Inductor finds us] in ``torch_openreg/inductor``. Here ours are registered when Inductor has been
imported, which only programs that compile do.
"""

import importlib

from torch_openreg._imports import after_import

__all__ = ["install"]


def install() -> None:
    """Has the import of Inductor register our device type."""
    after_import("torch._inductor.compile_fx", _register)


def _register() -> None:
    importlib.import_module("torch_openreg.inductor")
