"""Decompositions for Inductor of operators that it compiles for a GPU only.

Products with a dtype of the result are products of factors in this dtype, as in eager mode.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.decomposition import decompositions

from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["install"]

aten = torch.ops.aten


def _with_result_dtype(operator: Any) -> Callable[..., Any]:
    """Returns the decomposition of an operator's overload "dtype" into its overload "default"."""

    def decompose(*args: Any, **numbers: Any) -> Any:
        *tensors, out_dtype = args
        if tensors[0].device.type != DEVICE_TYPE:
            return NotImplemented
        return operator.default(*(one.to(out_dtype) for one in tensors), **numbers)

    return decompose


def install() -> None:
    """Adds them to Inductor's table."""
    table: Any = decompositions
    for operator in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
        table[operator.dtype] = _with_result_dtype(operator)


install()
