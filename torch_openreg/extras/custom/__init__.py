"""Operators of the package's own, ``torch.ops.openreg``."""

from types import ModuleType

from torch_openreg.extras import add_module
from torch_openreg.extras.custom import meta

__all__ = ["register"]


def register(module: ModuleType) -> None:
    """Adds ``torch.openreg.meta``.

    Args:
        module: The module ``torch.openreg``.
    """
    add_module(module, meta, is_public=True)
