# Step 3: device memory and pinned memory.
import gc

import torch
from common import NAME, held
from torch.testing._internal.common_utils import TestCase, run_tests

SIZE = 1 << 20


class TestMemory(TestCase):
    def setUp(self):
        super().setUp()
        gc.collect()
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()

    def test_freed_memory_is_given_out_again_on_its_stream(self):
        with held():
            address = torch.empty(SIZE, device=NAME).data_ptr()
            self.assertEqual(torch.empty(SIZE, device=NAME).data_ptr(), address)

    def test_freed_memory_is_not_given_out_on_another_stream(self):
        x = torch.empty(SIZE, device=NAME)
        address = x.data_ptr()
        del x
        with torch.Stream(NAME):
            self.assertNotEqual(torch.empty(SIZE, device=NAME).data_ptr(), address)

    def test_record_stream_keeps_memory_for_the_work_of_that_stream(self):
        other = torch.Stream(NAME)
        x = torch.ones(SIZE, device=NAME)
        torch.accelerator.synchronize()
        with held(other):
            with other:
                y = x + x
            x.record_stream(other)
            del x
            z = torch.empty(SIZE, device=NAME)  # the same memory
            z.copy_(torch.zeros(SIZE).pin_memory(), non_blocking=True)
            self.assertFalse(torch.accelerator.current_stream().query())
        torch.accelerator.synchronize()
        self.assertEqual(y.cpu(), torch.full((SIZE,), 2.0))

    def test_statistics_count_bytes(self):
        before = torch.accelerator.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        x = torch.empty(SIZE, device=NAME)
        self.assertEqual(torch.accelerator.memory_allocated(), before + 4 * SIZE)
        del x
        self.assertEqual(torch.accelerator.memory_allocated(), before)
        self.assertEqual(torch.accelerator.max_memory_allocated(), before + 4 * SIZE)
        self.assertGreaterEqual(torch.accelerator.memory_reserved(), before + 4 * SIZE)
        torch.accelerator.empty_cache()
        self.assertEqual(torch.accelerator.memory_reserved(), before)

    def test_memory_that_there_is_not_is_refused(self):
        with self.assertRaisesRegex(torch.OutOfMemoryError, "out of memory"):
            torch.empty(1 << 50, dtype=torch.uint8, device=NAME)
        self.assertEqual(torch.accelerator.memory_stats()["num_ooms"] > 0, True)

    def test_pinned_memory_is_kept_until_its_copy_is_done(self):
        x = torch.full((SIZE,), 1.0).pin_memory()
        address = x.data_ptr()
        with held():
            y = x.to(NAME, non_blocking=True)
            del x
            self.assertNotEqual(torch.empty(SIZE, pin_memory=True).data_ptr(), address)
        self.assertEqual(y.cpu(), torch.full((SIZE,), 1.0))

    def test_copy_from_pinned_memory_does_not_wait(self):
        x = torch.arange(10.0).pin_memory()
        self.assertTrue(x.is_pinned())
        with held() as gate:
            y = x.to(NAME, non_blocking=True)
            back = torch.zeros(10, pin_memory=True).copy_(y, non_blocking=True)
            self.assertEqual(back, torch.zeros(10))
            self.assertFalse(gate.is_set())
        torch.accelerator.synchronize()
        self.assertEqual(back, torch.arange(10.0))

    def test_copy_between_devices_follows_the_streams_of_both(self):
        x = torch.zeros(10, device=f"{NAME}:0")
        torch.accelerator.synchronize()
        with held(torch.accelerator.current_stream(x.device)):
            y = (x + torch.ones(10).pin_memory().to(x.device, non_blocking=True)).to(f"{NAME}:1")
            self.assertFalse(torch.accelerator.current_stream(y.device).query())
        self.assertEqual(y.cpu(), torch.ones(10))

    def test_storage_grows_and_keeps_its_contents(self):
        x = torch.arange(4.0, device=NAME)
        x.untyped_storage().resize_(4096)
        self.assertEqual(x.cpu(), torch.arange(4.0))


if __name__ == "__main__":
    run_tests()
