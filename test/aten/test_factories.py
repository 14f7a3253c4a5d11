"""Tensors that are made on the device."""

import torch
from common import DEVICE_COUNT, DEVICE_TYPE, OpenRegTestCase, run_tests


class TestZeroTensors(OpenRegTestCase):
    """Tensors of zeros without memory, which autograd makes."""

    def make(self, *size, **options):
        return torch._efficientzerotensor(size, device=DEVICE_TYPE, **options)

    def test_zero_tensor_takes_no_memory(self):
        before = torch.openreg.memory_allocated()
        zeros = self.make(1000)
        self.assertTrue(zeros._is_zerotensor())
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_zero_tensor_has_size_type_and_device(self):
        zeros = torch._efficientzerotensor(
            (2, 3), dtype=torch.int32, device=f"{DEVICE_TYPE}:{DEVICE_COUNT - 1}"
        )
        self.assertEqual(zeros.shape, (2, 3))
        self.assertEqual(zeros.dtype, torch.int32)
        self.assertEqual(zeros.device, torch.device(DEVICE_TYPE, DEVICE_COUNT - 1))

    def test_zero_tensor_is_an_operand_like_any_other(self):
        x = torch.tensor([1.0, 2.0], device=DEVICE_TYPE)
        self.assertEqual((x + self.make(2)).tolist(), [1.0, 2.0])
        self.assertEqual((x * self.make(2)).tolist(), [0.0, 0.0])
        self.assertEqual(x.clone().copy_(self.make(2)).tolist(), [0.0, 0.0])
        self.assertEqual(self.make(2).cpu().tolist(), [0.0, 0.0])
        self.assertEqual(self.make(2).tolist(), [0.0, 0.0])

    def test_second_derivative_that_vanishes_is_zero(self):
        x = torch.tensor([-2.0, 3.0], device=DEVICE_TYPE, requires_grad=True)
        (first,) = torch.autograd.grad((x.abs() * x.detach()).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        self.assertEqual(second.tolist(), [0.0, 0.0])


if __name__ == "__main__":
    run_tests()
