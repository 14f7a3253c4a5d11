"""Poison: memory without contents reads as NaN, and allocations are guarded."""

from types import ModuleType

from torch_openreg.extras import add_names
from torch_openreg.extras.poison import poison

__all__ = ["register"]


def register(module: ModuleType) -> None:
    """Adds ``torch.openreg.memory.check``.

    Args:
        module: The module ``torch.openreg``.
    """
    add_names(module.memory, poison, poison.__all__)
