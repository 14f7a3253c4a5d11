"""The guard: the current device, its current stream, and blocks that restore both."""

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, call_in_thread, needs
from torch_openreg.conformance.target import target

DEVICE = target().device
OTHER = target().other()


@needs("accelerator")
class TestGuard(ConformanceTestCase):
    def test_device_without_an_index_is_the_current_one(self) -> None:
        x = torch.empty(2, device=DEVICE.type)
        self.assertEqual(x.device.index, torch.accelerator.current_device_index())

    @needs("two devices")
    def test_set_device_index_changes_the_current_device(self) -> None:
        torch.accelerator.set_device_index(OTHER)
        try:
            self.assertEqual(torch.accelerator.current_device_index(), OTHER.index)
            self.assertEqual(torch.empty(2, device=DEVICE.type).device, OTHER)
        finally:
            torch.accelerator.set_device_index(DEVICE)

    @needs("two devices")
    def test_block_selects_a_device_and_restores_the_one_before(self) -> None:
        with torch.accelerator.device_index(OTHER.index):
            self.assertEqual(torch.accelerator.current_device_index(), OTHER.index)
            with torch.accelerator.device_index(DEVICE.index):
                self.assertEqual(torch.accelerator.current_device_index(), DEVICE.index)
            self.assertEqual(torch.accelerator.current_device_index(), OTHER.index)
        self.assertEqual(torch.accelerator.current_device_index(), DEVICE.index)

    @needs("two devices")
    def test_block_restores_after_an_exception(self) -> None:
        with self.assertRaises(KeyError), torch.accelerator.device_index(OTHER.index):
            raise KeyError
        self.assertEqual(torch.accelerator.current_device_index(), DEVICE.index)

    @needs("two devices")
    def test_current_device_belongs_to_a_thread(self) -> None:
        with torch.accelerator.device_index(OTHER.index):
            self.assertEqual(call_in_thread(torch.accelerator.current_device_index), 0)

    @needs("two devices")
    def test_operator_leaves_the_current_device_alone(self) -> None:
        x = torch.ones(4, device=OTHER)
        self.assertEqual((x + 1).device, OTHER)
        self.assertEqual(torch.accelerator.current_device_index(), DEVICE.index)

    def test_index_out_of_range_is_refused(self) -> None:
        with self.assertRaises(RuntimeError):
            torch.accelerator.set_device_index(target().device_count())
        with self.assertRaises(RuntimeError):
            torch.empty(1, device=f"{DEVICE.type}:{target().device_count()}")

    @needs("streams")
    def test_stream_block_selects_a_stream_and_restores_the_one_before(self) -> None:
        before = torch.accelerator.current_stream(DEVICE)
        stream = torch.Stream(DEVICE)
        with stream:
            self.assertEqual(torch.accelerator.current_stream(DEVICE), stream)
        self.assertEqual(torch.accelerator.current_stream(DEVICE), before)

    @needs("streams", "two devices")
    def test_stream_block_selects_the_streams_device(self) -> None:
        with torch.Stream(OTHER):
            self.assertEqual(torch.accelerator.current_device_index(), OTHER.index)
        self.assertEqual(torch.accelerator.current_device_index(), DEVICE.index)

    @needs("streams")
    def test_current_stream_belongs_to_a_thread(self) -> None:
        before = torch.accelerator.current_stream(DEVICE)
        with torch.Stream(DEVICE):
            seen = call_in_thread(lambda: torch.accelerator.current_stream(DEVICE))
        self.assertEqual(seen, before)
