"""The hooks of the device type, from Python: pinned memory, resized storages, default generators.
The same from C++ is in test_guard_cpp.py.
"""

import gc

import pytest
import torch
from common import (
    DEVICE_COUNT,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
    subtest,
)

LAST = DEVICE_COUNT - 1
MIB = 1024 * 1024


class TestPinnedMemory(OpenRegTestCase):
    # A unique size, so that no other test's cached block fits.
    SIZE = 7 * MIB

    def pinned(self, value):
        return torch.full((self.SIZE,), value, dtype=torch.uint8, pin_memory=True)

    @parametrize(
        "make",
        [
            subtest(lambda: torch.empty(3, pin_memory=True), name="empty"),
            subtest(lambda: torch.zeros(3, pin_memory=True), name="zeros"),
            subtest(lambda: torch.randn(2, 3, pin_memory=True), name="randn"),
            subtest(lambda: torch.tensor([1.5, 2.5], pin_memory=True), name="tensor"),
            subtest(lambda: torch.ones(3).pin_memory(), name="method"),
            subtest(lambda: torch.ones(3).pin_memory("openreg"), name="method_with_device"),
            subtest(lambda: torch.ones(2, 3).t().pin_memory(), name="method_of_a_view"),
            subtest(lambda: torch.empty(3, pin_memory=True)[1:], name="view"),
            subtest(lambda: torch.empty_like(torch.ones(3), pin_memory=True), name="empty_like"),
        ],
    )
    def test_tensor_is_pinned_that_was_made_by(self, make):
        x = make()
        self.assertTrue(x.is_pinned())
        self.assertEqual(x.device, torch.device("cpu"))

    def test_ordinary_and_device_tensors_are_not_pinned(self):
        self.assertFalse(torch.ones(3).is_pinned())
        self.assertFalse(torch.ones(3, device="openreg").is_pinned())

    def test_pinning_keeps_the_contents_and_the_shape(self):
        x = torch.randn(4, 5)
        self.assertEqual(x.pin_memory(), x)

    def test_pinning_a_pinned_tensor_copies_nothing(self):
        x = torch.ones(3).pin_memory()
        self.assertIs(x.pin_memory(), x)

    def test_pinning_a_device_tensor_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "cannot pin"):
            torch.ones(3, device="openreg").pin_memory()

    def test_making_a_pinned_device_tensor_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "Only dense CPU tensors can be pinned"):
            torch.empty(3, device="openreg", pin_memory=True)

    def test_empty_tensor_can_be_pinned(self):
        self.assertEqual(torch.empty(0, 3).pin_memory().shape, (0, 3))

    def test_storage_can_be_pinned(self):
        storage = torch.arange(10).untyped_storage()
        self.assertFalse(storage.is_pinned())
        pinned = storage.pin_memory()
        self.assertTrue(pinned.is_pinned())
        self.assertEqual(pinned.tolist(), storage.tolist())

    def test_host_reads_and_writes_pinned_memory(self):
        x = torch.zeros(3, pin_memory=True)
        x.numpy()[1] = 5
        self.assertEqual(x.tolist(), [0.0, 5.0, 0.0])

    def test_pinned_memory_is_reused(self):
        x = self.pinned(1)
        address = x.data_ptr()
        del x
        self.assertEqual(self.pinned(2).data_ptr(), address)

    def test_empty_host_cache_gives_pinned_memory_back(self):
        x = self.pinned(1)
        del x
        torch.accelerator.memory.empty_host_cache()
        self.assertTrue(self.pinned(3).is_pinned())

    @parametrize("index", range(DEVICE_COUNT))
    def test_non_blocking_copy_to_the_device_returns_before_it_ran(self, index):
        x = self.pinned(1)
        with StreamGate(torch.openreg.current_stream(index)):
            y = x.to(f"openreg:{index}", non_blocking=True)
            self.assertFalse(torch.openreg.current_stream(index).query())
        self.assertTrue(torch.equal(y.cpu(), x))

    @pytest.mark.openreg_sanitizer(expect="host")  # it reads before the copy has run
    @parametrize("index", range(DEVICE_COUNT))
    def test_non_blocking_copy_to_the_host_returns_before_it_ran(self, index):
        x = torch.ones(self.SIZE, dtype=torch.uint8, device=f"openreg:{index}")
        y = self.pinned(0)
        torch.openreg.synchronize(index)
        with StreamGate(torch.openreg.current_stream(index)):
            y.copy_(x, non_blocking=True)
            self.assertEqual(int(y.max()), 0)
        torch.openreg.synchronize(index)
        self.assertEqual(int(y.min()), 1)

    def test_source_is_not_reused_before_the_copy_ran(self):
        x = self.pinned(1)
        address = x.data_ptr()
        with StreamGate():
            y = x.to("openreg", non_blocking=True)
            del x
            other = self.pinned(2)
            self.assertNotEqual(other.data_ptr(), address)
        self.assertEqual(int(y.cpu().max()), 1)

    def test_target_is_not_reused_before_the_copy_ran(self):
        x = torch.ones(self.SIZE, dtype=torch.uint8, device="openreg")
        y = self.pinned(0)
        address = y.data_ptr()
        with StreamGate():
            y.copy_(x, non_blocking=True)
            del y
            other = self.pinned(2)
            self.assertNotEqual(other.data_ptr(), address)
        torch.openreg.synchronize()
        self.assertEqual(int(other.min()), 2)

    def test_memory_is_reused_once_the_copy_ran(self):
        x = self.pinned(1)
        address = x.data_ptr()
        with StreamGate():
            x.to("openreg", non_blocking=True)
            del x
        torch.openreg.synchronize()
        self.assertEqual(self.pinned(2).data_ptr(), address)

    def test_memory_waits_for_every_stream_that_copies_from_it(self):
        streams = [torch.openreg.Stream() for _ in range(2)]
        x = self.pinned(1)
        address = x.data_ptr()
        with StreamGate(streams[0]), StreamGate(streams[1]) as second:
            for stream in streams:
                with stream:
                    x.to("openreg", non_blocking=True)
            del x
            second.open()
            streams[1].synchronize()
            self.assertNotEqual(self.pinned(2).data_ptr(), address)

    def test_view_of_pinned_memory_keeps_all_of_it(self):
        x = self.pinned(1)
        address = x.data_ptr()
        with StreamGate():
            y = x[100:200].to("openreg", non_blocking=True)
            del x
            self.assertNotEqual(self.pinned(2).data_ptr(), address)
        self.assertEqual(y.tolist(), [1] * 100)

    def test_data_loader_pins_its_batches(self):
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True):
            self.assertTrue(batch.is_pinned())

    def test_question_for_pinned_memory_creates_no_device(self):
        run_program(
            """
            import torch
            from torch_openreg import _C
            assert not torch.ones(3).is_pinned()
            assert not _C._is_device_active(0)
            assert not torch.openreg.is_initialized()
            """
        )


class TestResize(OpenRegTestCase):
    @parametrize("index", range(DEVICE_COUNT))
    @parametrize("size", [0, 3, 8, 5000])
    def test_storage_keeps_what_fits(self, index, size):
        storage = torch.arange(8, dtype=torch.uint8, device=f"openreg:{index}").untyped_storage()
        storage.resize_(size)
        self.assertEqual(storage.nbytes(), size)
        self.assertEqual(storage.device, torch.device("openreg", index))
        kept = min(size, 8)
        self.assertEqual(list(storage.cpu())[:kept], list(range(kept)))
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_storage_of_no_size_holds_no_memory(self):
        gc.collect()
        before = torch.openreg.memory_allocated()
        x = torch.ones(1000, device="openreg")
        x.untyped_storage().resize_(0)
        self.assertEqual(torch.openreg.memory_allocated(), before)
        x.untyped_storage().resize_(4000)
        self.assertEqual(x.fill_(2).sum().item(), 2000)

    def test_storage_is_resized_in_stream_order(self):
        x = torch.zeros(8, dtype=torch.uint8, device="openreg")
        torch.openreg.synchronize()
        with StreamGate():
            x.fill_(5)
            x.untyped_storage().resize_(100)
            x.add_(1)
        self.assertEqual(x.tolist(), [6] * 8)

    def test_storage_that_is_not_resizable_is_refused(self):
        x = torch.from_numpy(torch.arange(4).numpy())
        with self.assertRaisesRegex(RuntimeError, "not resizable"):
            x.untyped_storage().resize_(100)
        y = torch.arange(4, device="openreg").untyped_storage()
        self.assertTrue(y.resizable())

    def test_tensor_grows_and_keeps_its_contents(self):
        x = torch.arange(6, device="openreg").view(2, 3)
        x.resize_(4, 5)
        self.assertEqual(x.shape, (4, 5))
        self.assertEqual(x.flatten()[:6].tolist(), list(range(6)))

    def test_tensor_shrinks_in_place(self):
        x = torch.arange(6, device="openreg")
        address = x.data_ptr()
        x.resize_(2)
        self.assertEqual((x.tolist(), x.data_ptr()), ([0, 1], address))
        x.resize_(6)
        self.assertEqual((x.tolist(), x.data_ptr()), (list(range(6)), address))

    def test_view_that_grows_grows_the_storage_of_all(self):
        x = torch.arange(6, device="openreg")
        y = x[4:]
        y.resize_(10)
        self.assertEqual(y[:2].tolist(), [4, 5])
        self.assertEqual(x.tolist(), list(range(6)))
        self.assertEqual(x.untyped_storage().nbytes(), y.untyped_storage().nbytes())

    def test_memory_format_is_applied(self):
        x = torch.empty(0, device="openreg")
        x.resize_(2, 3, 4, 5, memory_format=torch.channels_last)
        self.assertTrue(x.is_contiguous(memory_format=torch.channels_last))

    def test_negative_size_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "negative dimension"):
            torch.ones(3, device="openreg").resize_(-1)

    def test_tensor_of_a_storage_shares_its_memory(self):
        x = torch.arange(10, dtype=torch.float32, device="openreg")
        y = torch.empty(0, device="openreg").set_(x.untyped_storage(), 2, (3,), (2,))
        self.assertEqual(y.tolist(), [2.0, 4.0, 6.0])
        y.zero_()
        self.assertEqual(x[2:7:2].tolist(), [0.0] * 3)

    @requires_two_devices
    def test_tensor_of_a_storage_on_another_device_is_refused(self):
        storage = torch.ones(3, device="openreg:1").untyped_storage()
        with self.assertRaises(RuntimeError):
            torch.empty(0, device="openreg:0").set_(storage)

    def test_set_without_a_source_empties_the_tensor(self):
        x = torch.ones(3, device="openreg")
        x.set_()
        self.assertEqual((x.shape, x.device.type), ((0,), "openreg"))


class TestGenerators(OpenRegTestCase):
    @parametrize("index", range(DEVICE_COUNT))
    def test_default_generator_belongs_to_its_device(self, index):
        generator = torch.openreg.default_generators[index]
        self.assertEqual(generator.device, torch.device("openreg", index))

    @requires_two_devices
    def test_devices_draw_from_generators_of_their_own(self):
        torch.openreg.manual_seed_all(6)
        first = torch.randn(4, device="openreg:0")
        torch.randn(100, device="openreg:0")
        self.assert_bit_equal(torch.randn(4, device="openreg:1"), first)

    def test_manual_seed_of_torch_seeds_all_devices(self):
        torch.manual_seed(1234)
        for generator in torch.openreg.default_generators:
            self.assertEqual(generator.initial_seed(), 1234)

    def test_new_generator_has_the_seed_of_a_new_cpu_generator(self):
        self.assertEqual(
            torch.Generator("openreg").initial_seed(), torch.Generator().initial_seed()
        )

    def test_new_generator_is_of_the_device_given(self):
        generator = torch.Generator(f"openreg:{LAST}")
        self.assertEqual(generator.device, torch.device("openreg", LAST))
        with torch.openreg.device(LAST):
            self.assertEqual(torch.Generator("openreg").device.index, LAST)

    def test_generator_of_a_device_that_does_not_exist_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            torch.Generator(f"openreg:{DEVICE_COUNT}")

    def test_clone_goes_on_from_the_same_state(self):
        generator = torch.Generator("openreg").manual_seed(5)
        torch.randn(7, device="openreg", generator=generator)
        clone = generator.clone_state()
        self.assert_bit_equal(
            torch.randn(7, device="openreg", generator=clone),
            torch.randn(7, device="openreg", generator=generator).cpu(),
        )

    def test_state_is_read_after_the_kernels_that_draw(self):
        generator = torch.Generator("openreg").manual_seed(5)
        reference = torch.Generator().manual_seed(5)
        torch.randn(100, generator=reference)
        torch.randn(100, device="openreg", generator=generator)
        self.assertEqual(generator.get_state(), reference.get_state())

    def test_seed_takes_effect_in_stream_order(self):
        generator = torch.Generator("openreg").manual_seed(5)
        x = torch.randn(100, device="openreg", generator=generator)
        generator.manual_seed(5)
        self.assert_bit_equal(torch.randn(100, device="openreg", generator=generator), x.cpu())

    def test_kernels_on_two_streams_draw_in_the_order_of_the_calls(self):
        generator = torch.Generator("openreg").manual_seed(9)
        reference = torch.Generator().manual_seed(9)
        expected = [torch.randn(20, generator=reference) for _ in range(2)]
        side = torch.openreg.Stream()
        x, y = (torch.empty(20, device="openreg") for _ in range(2))
        torch.openreg.synchronize()
        with StreamGate():
            x.normal_(generator=generator)
            with side:
                y.normal_(generator=generator)
            self.assertFalse(side.query())
        side.synchronize()
        self.assert_bit_equal(x, expected[0])
        self.assert_bit_equal(y, expected[1])


instantiate_parametrized_tests(TestPinnedMemory)
instantiate_parametrized_tests(TestResize)
instantiate_parametrized_tests(TestGenerators)

if __name__ == "__main__":
    run_tests()
