"""Memory: tensors have separate memory, and the allocator's statistics count it."""

import gc

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, needs
from torch_openreg.conformance.target import target

DEVICE = target().device
SIZE = 4 * 1024 * 1024


class TestTensors(ConformanceTestCase):
    def test_copies_there_and_back_are_the_same(self) -> None:
        for dtype in (torch.float32, torch.int64, torch.uint8, torch.bool, torch.complex64):
            x = torch.arange(100).to(dtype).view(4, 25)
            self.assert_bit_equal(x.to(DEVICE), x)
            self.assert_bit_equal(x.to(DEVICE).t(), x.t())

    def test_new_memory_is_not_that_of_a_tensor_in_use(self) -> None:
        tensors = [torch.full((1000,), float(number), device=DEVICE) for number in range(50)]
        for number, one in enumerate(tensors):
            self.assert_bit_equal(one, torch.full((1000,), float(number)))

    def test_tensor_of_no_elements_has_no_memory(self) -> None:
        x = torch.empty(0, device=DEVICE)
        self.assertEqual(x.untyped_storage().nbytes(), 0)
        self.assertEqual((x + 1).shape, (0,))

    @needs("pinned memory")
    def test_copies_of_pinned_memory_are_ordered_by_the_stream(self) -> None:
        x = torch.arange(1000.0).pin_memory()
        y = x.to(DEVICE, non_blocking=True) * 2
        z = torch.empty(1000, pin_memory=True).copy_(y, non_blocking=True)
        torch.accelerator.synchronize(DEVICE)
        self.assert_bit_equal(z, torch.arange(1000.0) * 2)

    @needs("two devices")
    def test_copies_between_devices_are_the_same(self) -> None:
        x = torch.arange(1000.0)
        self.assert_bit_equal(x.to(DEVICE).to(target().other()), x)


@needs("statistics")
class TestStatistics(ConformanceTestCase):
    def setUp(self) -> None:
        super().setUp()
        gc.collect()
        torch.accelerator.synchronize(DEVICE)

    def test_allocated_memory_grows_with_a_tensor_and_shrinks_without_it(self) -> None:
        before = torch.accelerator.memory_allocated(DEVICE)
        x = torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)
        self.assertGreaterEqual(torch.accelerator.memory_allocated(DEVICE), before + SIZE)
        del x
        self.assertEqual(torch.accelerator.memory_allocated(DEVICE), before)

    def test_reserved_memory_is_at_least_what_is_allocated(self) -> None:
        x = torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)
        self.assertGreaterEqual(
            torch.accelerator.memory_reserved(DEVICE), torch.accelerator.memory_allocated(DEVICE)
        )
        del x

    def test_peak_stays_until_it_is_reset(self) -> None:
        torch.accelerator.reset_peak_memory_stats(DEVICE)
        before = torch.accelerator.memory_allocated(DEVICE)
        x = torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)
        del x
        self.assertGreaterEqual(torch.accelerator.max_memory_allocated(DEVICE), before + SIZE)
        torch.accelerator.reset_peak_memory_stats(DEVICE)
        self.assertEqual(torch.accelerator.max_memory_allocated(DEVICE), before)

    def test_empty_cache_leaves_tensors_alone(self) -> None:
        x = torch.arange(1000.0, device=DEVICE)
        y = torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)
        del y
        torch.accelerator.synchronize(DEVICE)
        before = torch.accelerator.memory_reserved(DEVICE)
        torch.accelerator.empty_cache()
        self.assertLessEqual(torch.accelerator.memory_reserved(DEVICE), before)
        self.assert_bit_equal(x, torch.arange(1000.0))

    def test_counters_of_torch_are_among_the_statistics(self) -> None:
        statistics = torch.accelerator.memory_stats(DEVICE)
        for name in ("allocated_bytes.all.current", "reserved_bytes.all.peak", "num_ooms"):
            self.assertIn(name, statistics)

    def test_memory_that_there_is_not_is_refused(self) -> None:
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(2**50, dtype=torch.uint8, device=DEVICE)
        self.assert_bit_equal(torch.ones(3, device=DEVICE), torch.ones(3))
