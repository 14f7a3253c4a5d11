"""What automatic mixed precision can use on the device."""

import torch

from torch_openreg.openreg.devices import is_available

__all__ = ["get_amp_supported_dtype", "is_bf16_supported", "is_tf32_supported"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the types that ``torch.autocast("openreg")`` can compute in."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether the device computes in bfloat16, which it does as the CPU does.

    Args:
        including_emulation: Accepted for compatibility; without effect.
    """
    del including_emulation
    return is_available()


def is_tf32_supported() -> bool:
    """Returns False: the CPU has no TF32."""
    return False
