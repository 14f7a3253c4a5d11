"""Function transforms, parametrizations and utilities for training give the CPU's results."""

from openreg_target import TARGET

# isort: split
import torch
from common import run_tests

from torch_openreg.conformance import test_func as func
from torch_openreg.conformance.test_func import TestParametrizations, TestTransforms

__all__ = [
    "TARGET",
    "TestMemory",
    "TestParametrizations",
    "TestTrainingUtilities",
    "TestTransforms",
]


class TestTrainingUtilities(func.TestTrainingUtilities):
    def test_clip_grad_norm_chooses_the_lists_of_tensors(self):
        x = self.gradients_on(func.DEVICE)
        torch.openreg.reset_fallback_stats()
        torch.nn.utils.clip_grad_norm_(x, 0.5)
        self.assertTrue(any("_foreach_" in name for name in torch.openreg.fallback_stats()))


class TestMemory(func.TestMemory):
    def test_memory_is_not_filled_if_switched_off(self):
        torch.use_deterministic_algorithms(True)
        func.deterministic.fill_uninitialized_memory = False
        x = torch.ones(1000, device=func.DEVICE)
        address = x.data_ptr()
        del x
        y = torch.empty(1000, device=func.DEVICE)
        self.assertEqual(y.data_ptr(), address)
        self.assert_bit_equal(y, torch.ones(1000))


if __name__ == "__main__":
    run_tests()
