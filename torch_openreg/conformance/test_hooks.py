"""The hooks: the interface of a device type for ATen and torch.accelerator besides operators."""

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, needs
from torch_openreg.conformance.target import target

DEVICE = target().device


class TestHooks(ConformanceTestCase):
    def test_device_type_is_the_current_accelerator(self) -> None:
        self.assertEqual(
            torch.accelerator.current_accelerator(check_available=True), torch.device(DEVICE.type)
        )

    @needs("accelerator")
    def test_accelerator_is_available_and_counts_its_devices(self) -> None:
        self.assertTrue(torch.accelerator.is_available())
        self.assertGreater(torch.accelerator.device_count(), DEVICE.index)

    def test_module_is_found_by_the_device_type(self) -> None:
        self.assertIsNotNone(target().module, f"expected a module torch.{DEVICE.type}")
        self.assertIs(torch.get_device_module(DEVICE.type), target().module)

    @needs("module")
    def test_module_has_what_torch_asks_of_it(self) -> None:
        names = ("is_available", "device_count", "current_device", "synchronize")
        self.assertEqual([name for name in names if not hasattr(target().module, name)], [])

    @needs("pinned memory")
    def test_pinned_memory_is_known_as_pinned(self) -> None:
        x = torch.arange(5.0)
        self.assertFalse(x.is_pinned())
        pinned = x.pin_memory()
        self.assertTrue(pinned.is_pinned())
        self.assert_bit_equal(pinned, x)

    @needs("pinned memory")
    def test_part_of_pinned_memory_is_pinned(self) -> None:
        self.assertTrue(torch.arange(64.0).pin_memory()[5:].is_pinned())

    def test_storage_grows_and_keeps_its_contents(self) -> None:
        x = torch.ones(4, device=DEVICE)
        x.untyped_storage().resize_(64 * x.element_size())
        self.assertEqual(x.untyped_storage().nbytes(), 64 * x.element_size())
        self.assert_bit_equal(x, torch.ones(4))

    def test_tensor_grows_and_keeps_its_contents(self) -> None:
        x = torch.arange(3.0).to(DEVICE)
        x.resize_(100)
        self.assert_bit_equal(x[:3], torch.arange(3.0))

    @needs("generator")
    def test_generator_of_a_device_is_on_it(self) -> None:
        self.assertEqual(torch.Generator(DEVICE).device, DEVICE)

    @needs("accelerator")
    def test_capability_names_dtypes_that_tensors_can_have(self) -> None:
        types = torch.accelerator.get_device_capability(DEVICE)["supported_dtypes"]
        self.assertIn(torch.float32, types)
        for dtype in types - {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2}:
            if dtype.is_floating_point or dtype.is_complex or dtype in (torch.int64, torch.bool):
                self.assertEqual(torch.zeros(2, dtype=dtype, device=DEVICE).cpu().dtype, dtype)
