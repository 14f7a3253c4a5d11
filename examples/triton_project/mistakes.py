"""Two versions of the kernel of ``sums.py`` that are wrong.

On a GPU, both can print the right sums: what lies behind the matrix may be zeros, and the programs
may happen to run one after the other.
"""

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def without_mask(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Reads behind the matrix."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row[:, None] * columns + column[None, :])
    tl.atomic_add(out_ptr + column, tl.sum(x, axis=0), mask=column < columns)


# docs: triton-race
@triton.jit
def without_atomics(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Loses what another program has added in between."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    mask = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask, other=0.0)
    total = tl.load(out_ptr + column, mask=column < columns)
    tl.store(out_ptr + column, total + tl.sum(x, axis=0), mask=column < columns)


# docs: end


def main() -> None:
    """Runs the kernel that the first argument names."""
    kernel = {"mask": without_mask, "atomics": without_atomics}[sys.argv[1]]
    x = torch.ones(40, 20, device="cuda")
    out = torch.zeros(20, device="cuda")
    kernel[(3,)](x, out, *x.shape, ROWS=16, COLUMNS=32)
    print(out.tolist())


if __name__ == "__main__":
    main()
