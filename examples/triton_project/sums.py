"""Sums of the columns of a matrix, by a kernel of Triton. It is for CUDA, as many are."""

import torch
import triton
import triton.language as tl

__all__ = ["sum_columns", "sum_columns_kernel"]


@triton.jit
def sum_columns_kernel(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Adds the rows of a tile to the sums of its columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask, other=0.0)
    tl.atomic_add(out_ptr + column, tl.sum(x, axis=0), mask=column < columns)


def sum_columns(x: torch.Tensor) -> torch.Tensor:
    """Returns the sums of the columns of a matrix."""
    rows, columns = x.shape
    out = torch.zeros(columns, device=x.device)
    grid = (triton.cdiv(rows, 16), triton.cdiv(columns, 32))
    sum_columns_kernel[grid](x, out, rows, columns, ROWS=16, COLUMNS=32)
    return out
