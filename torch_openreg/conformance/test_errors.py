"""Errors: wrong arguments raise errors, and the device remains usable."""

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, needs
from torch_openreg.conformance.target import target

DEVICE = target().device


class TestErrors(ConformanceTestCase):
    def tearDown(self) -> None:
        x = torch.ones(3, device=DEVICE) + 1
        self.assert_bit_equal(x, torch.full((3,), 2.0))
        super().tearDown()

    def test_host_memory_and_device_memory_do_not_mix(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "same device|on device|device type"):
            torch.ones(3, device=DEVICE) + torch.ones(3)

    @needs("two devices")
    def test_memory_of_two_devices_does_not_mix(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "same device|on device"):
            torch.ones(3, device=DEVICE) + torch.ones(3, device=target().other())

    def test_shapes_that_do_not_fit_are_refused_in_the_call(self) -> None:
        with self.assertRaises(RuntimeError):
            torch.ones(3, device=DEVICE) + torch.ones(4, device=DEVICE)
        with self.assertRaises(RuntimeError):
            torch.ones(2, 3, device=DEVICE) @ torch.ones(2, 3, device=DEVICE)

    def test_dtype_that_an_operator_cannot_take_is_refused(self) -> None:
        with self.assertRaises(RuntimeError):
            torch.ones(2, 2, dtype=torch.bool, device=DEVICE).inverse()

    def test_host_cannot_take_device_memory_for_its_own(self) -> None:
        with self.assertRaises(TypeError):
            torch.ones(3, device=DEVICE).numpy()

    def test_dimension_out_of_range_is_an_index_error(self) -> None:
        with self.assertRaises(IndexError):
            torch.ones(3, device=DEVICE).sum(4)

    def test_operator_without_a_kernel_is_said_to_have_none(self) -> None:
        library = torch.library.Library("conformance_kit", "DEF")
        library.define("nowhere(Tensor x) -> Tensor")
        with self.assertRaises(NotImplementedError):
            torch.ops.conformance_kit.nowhere(torch.ones(3, device=DEVICE))
