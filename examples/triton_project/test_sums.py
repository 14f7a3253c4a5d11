"""Tests of ``sums.py``. Like the kernel, they are for CUDA and do not mention openreg."""

import pytest
import torch
from sums import sum_columns

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (50, 70)])
def test_sums_are_those_of_torch(shape):
    x = torch.randn(shape, device="cuda")
    torch.testing.assert_close(sum_columns(x), x.sum(0))


def test_sums_in_a_compiled_function():
    compiled = torch.compile(lambda x: sum_columns(x * 2) + 1)
    x = torch.randn(40, 40, device="cuda")
    torch.testing.assert_close(compiled(x), (x * 2).sum(0) + 1)
