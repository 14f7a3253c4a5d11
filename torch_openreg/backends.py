"""``torch.backends.openreg``: whether the device is there, and what attention may use.

The switches of scaled dot product attention are the functions of ``torch.backends.cuda``: torch has
one set of switches for all devices, and this one follows it. :func:`torch.nn.attention.sdpa_kernel`
sets them for a block. This device has one fused algorithm, which is used if any of the three
fused ones is enabled, and the algorithm ``math``, of several operators.
"""

from torch.backends.cuda import (
    allow_fp16_bf16_reduction_math_sdp,
    cudnn_sdp_enabled,
    enable_cudnn_sdp,
    enable_flash_sdp,
    enable_math_sdp,
    enable_mem_efficient_sdp,
    flash_sdp_enabled,
    fp16_bf16_reduction_math_sdp_allowed,
    math_sdp_enabled,
    mem_efficient_sdp_enabled,
)

from torch_openreg import openreg

__all__ = [
    "allow_fp16_bf16_reduction_math_sdp",
    "cudnn_sdp_enabled",
    "enable_cudnn_sdp",
    "enable_flash_sdp",
    "enable_math_sdp",
    "enable_mem_efficient_sdp",
    "flash_sdp_enabled",
    "fp16_bf16_reduction_math_sdp_allowed",
    "is_available",
    "is_built",
    "math_sdp_enabled",
    "mem_efficient_sdp_enabled",
]


def is_built() -> bool:
    """Returns True: the device's package is installed and loaded.

    That does not mean that there is a device; see :func:`is_available`.
    """
    return True


def is_available() -> bool:
    """Returns whether there is a device, as ``torch.openreg.is_available``. Never raises."""
    return openreg.is_available()
