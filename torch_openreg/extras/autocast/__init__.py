"""``torch.autocast`` on the device."""

from types import ModuleType

from torch_openreg.extras import add_module, add_names
from torch_openreg.extras.autocast import amp

__all__ = ["register"]


def register(module: ModuleType) -> None:
    """Adds ``torch.openreg.amp``, and what torch asks before it begins a region.

    Args:
        module: The module ``torch.openreg``.
    """
    add_module(module, amp, is_public=True)
    add_names(module, amp, ("get_amp_supported_dtype",))
