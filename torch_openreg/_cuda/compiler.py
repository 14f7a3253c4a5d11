"""``torch.compile``: Inductor uses this package's wrapper and pass for CUDA instead of Triton's.

Inductor gets classes only from the module of the device type ``PrivateUse1``; see Note [How
Inductor finds the package] in ``torch_openreg/inductor``. Here they are registered when Inductor
has been imported, which only programs that compile do.
"""

import importlib

from torch_openreg._imports import after_import

__all__ = ["install"]


def install() -> None:
    """Has the import of Inductor register our device type."""
    after_import("torch._inductor.compile_fx", _register)


def _register() -> None:
    importlib.import_module("torch_openreg.inductor")
