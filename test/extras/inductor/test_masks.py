"""Masks of vectorized kernels: torch_openreg/inductor/masks.h."""

import pytest
import torch
from common import (
    DEVICE_TYPE,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from extras.inductor.compiled import CompiledTestCase, kernel_sources

from torch_openreg.extras.inductor import _kernels

pytestmark = pytest.mark.sample(0.23)

# Whole vectors, parts of one, and both.
_SIZES = (1, 7, 16, 33, 257)


def masks_and_selections(tensors, masks):
    """Masks that are stored, and those that are loaded."""
    return [(x > 0, torch.where(mask, x, x - 3)) for x, mask in zip(tensors, masks, strict=True)]


class TestMasks(CompiledTestCase):
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64])
    def test_conversions_give_the_cpu_s_bits(self, dtype):
        torch.manual_seed(0)
        tensors = [torch.randn(size).mul(4).to(dtype) for size in _SIZES]
        if dtype.is_floating_point:
            for x in tensors:
                x[::3] = float("nan")
                x[1::5] = -0.0
        masks = [torch.randn(size) > 0 for size in _SIZES]
        function = torch.compile(masks_and_selections)
        expected = function(tensors, masks)
        with kernel_sources() as sources:
            actual = function(
                [x.to(DEVICE_TYPE) for x in tensors], [x.to(DEVICE_TYPE) for x in masks]
            )
        for source in sources:
            self.assertIn(_kernels._MASKS, _kernels._with_masks(source))
        source = "".join(sources)
        self.assertRegex(source, r"tmp\d+\.store\(")
        self.assertRegex(source, r"VecMask<\w+,\d>::from\(")
        eager = masks_and_selections(tensors, masks)
        for pairs in zip(actual, expected, eager, strict=True):
            for one, other, plain in zip(*pairs, strict=True):
                self.assertEqual(one.cpu().view(torch.uint8), other.view(torch.uint8))
                self.assertEqual(one.cpu(), plain, equal_nan=True)


instantiate_parametrized_tests(TestMasks)

if __name__ == "__main__":
    run_tests()
