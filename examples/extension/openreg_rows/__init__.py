"""Rows of a table, by number: an operator of our own, with kernels in C++."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["take_rows"]

torch.ops.load_library(Path(__file__).with_name("_C.so"))


def take_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Returns ``table[rows]``, differentiable in ``table``.

    Args:
        table: Floating-point, of shape (N, M).
        rows: int64, of shape (K,), from 0 to N - 1.

    Returns:
        Shape (K, M), type and device of ``table``.

    Raises:
        IndexError: A row is out of range. On openreg the next synchronizing call raises it.
    """
    return torch.ops.openreg_rows.take_rows(table, rows)


# docs: rows-fake
@torch.library.register_fake("openreg_rows::take_rows")
def _(table: Tensor, rows: Tensor) -> Tensor:
    return table.new_empty(rows.shape[0], table.shape[1])


@torch.library.register_fake("openreg_rows::take_rows_backward")
def _(gradient: Tensor, rows: Tensor, row_count: int) -> Tensor:
    return gradient.new_empty(row_count, gradient.shape[1])


# docs: end


# docs: rows-autograd
def _keep_rows(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    table, rows = inputs
    ctx.save_for_backward(rows)
    ctx.row_count = table.shape[0]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (rows,) = ctx.saved_tensors
    return torch.ops.openreg_rows.take_rows_backward(gradient, rows, ctx.row_count), None


torch.library.register_autograd("openreg_rows::take_rows", _backward, setup_context=_keep_rows)
# docs: end


def _keep_rows_of_backward(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward_of_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    (rows,) = ctx.saved_tensors
    return take_rows(gradient, rows), None, None


torch.library.register_autograd(
    "openreg_rows::take_rows_backward",
    _backward_of_backward,
    setup_context=_keep_rows_of_backward,
)
