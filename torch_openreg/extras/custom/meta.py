"""Operators of this package without data: shapes, dtypes and layouts of their results.

The kernels for the device ``meta`` are C++, beside those for tensors with data
(``csrc/extras/custom/CustomAbs.cpp``); PyTorch's OpenReg registers its own in a module of this
name.
"""

import torch

from torch_openreg.openreg._utils import MODULE_NAME

__all__ = ["custom_abs"]


def custom_abs(input: torch.Tensor) -> torch.Tensor:
    """Returns what ``torch.ops.openreg.custom_abs`` would return, as a tensor without data.

    Nothing is computed: the result is on the device ``meta``, with the shape, dtype and layout that
    the operator gives.

    Args:
        input: A tensor of any shape, on any device.

    Raises:
        TypeError: The argument is not a tensor.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"{MODULE_NAME}.meta.custom_abs: expected a tensor, got {input!r}")
    result: torch.Tensor = torch.ops.openreg.custom_abs(input.to("meta"))
    return result
