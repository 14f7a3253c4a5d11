"""Memory: statistics, caching and reuse; pinned memory; sizes of storages."""

import gc

import pytest
import torch
from common import (
    A_DEVICE,
    DEVICE_COUNT,
    DEVICE_TYPE,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_tests,
)
from memory.allocator_model import KIB, MIB, ROUNDING

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.3)

LAST = DEVICE_COUNT - 1


def allocate(size, device=DEVICE_TYPE):
    return torch.empty(size, dtype=torch.uint8, device=device)


class TestLazyClone(OpenRegTestCase):
    @parametrize("layout", ["contiguous", "transposed", "expanded", "offset", "empty"])
    def test_lazy_clone_is_a_tensor_of_its_own(self, layout):
        base = torch.arange(12.0, device=DEVICE_TYPE).view(3, 4)
        x = {
            "contiguous": base,
            "transposed": base.t(),
            "expanded": base[:, :1].expand(3, 5),
            "offset": base[1:],
            "empty": base[:0],
        }[layout]
        before = x.clone()
        y = torch._lazy_clone(x)
        self.assertEqual((y.shape, y.stride(), y.dtype), (x.shape, x.stride(), x.dtype))
        self.assert_bit_equal(y, before.cpu())
        base.zero_()
        self.assert_bit_equal(y, before.cpu())
        y.untyped_storage().fill_(0)
        base.fill_(7)
        self.assertFalse((y == 7).any().item())

    def test_lazy_clone_has_a_gradient(self):
        x = torch.ones(3, device=DEVICE_TYPE, requires_grad=True)
        (torch._lazy_clone(x) * 2).sum().backward()
        self.assertEqual(x.grad.tolist(), [2.0] * 3)


class TestStatistics(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        gc.collect()
        torch.openreg.synchronize()
        torch.openreg.empty_cache()
        torch.openreg.reset_peak_memory_stats()
        self.allocated = torch.openreg.memory_allocated()

    def test_allocated_memory_is_what_tensors_occupy(self):
        x = allocate(3 * MIB)
        self.assertEqual(torch.openreg.memory_allocated(), self.allocated + 3 * MIB)
        del x
        self.assertEqual(torch.openreg.memory_allocated(), self.allocated)

    def test_a_small_tensor_costs_no_more_of_the_host_than_one_of_the_cpu(self):
        output = run_child(
            """
            import torch

            def resident(name):
                with open("/proc/self/status") as file:
                    lines = dict(line.split(":", 1) for line in file)
                return int(lines[name].split()[0]) * 1024

            def cost(device, name):
                for _ in range(1000):
                    torch.ones(1, device=device)
                torch.openreg.synchronize()
                before, tensors = resident(name), [None] * 20_000
                for i in range(len(tensors)):
                    tensors[i] = torch.ones(1, device=device)
                torch.openreg.synchronize()
                return (resident(name) - before) / len(tensors)

            cpu, host, device = (
                cost("cpu", "RssAnon"), cost("openreg", "RssAnon"), cost("openreg", "RssShmem")
            )
            # The device's share is one block.
            assert host < cpu * 1.05, (cpu, host, device)
            before = torch.openreg.memory_allocated()
            one = torch.ones(1, device="openreg")
            block = torch.openreg.memory_allocated() - before
            assert device < block * 1.2, (cpu, host, device, block)
            """
        )
        self.assertEqual(output, "")

    def test_sizes_are_rounded_up(self):
        x = allocate(1)
        self.assertEqual(torch.openreg.memory_allocated(), self.allocated + ROUNDING)
        y = allocate(ROUNDING + 1)
        self.assertEqual(torch.openreg.memory_allocated(), self.allocated + 3 * ROUNDING)
        del x, y

    def test_addresses_are_aligned(self):
        for x in [allocate(size) for size in (1, 100, 5 * KIB, 3 * MIB)]:
            self.assertEqual(x.data_ptr() % ROUNDING, 0)

    def test_empty_tensor_occupies_nothing(self):
        x = allocate(0)
        self.assertEqual(torch.openreg.memory_allocated(), self.allocated)
        self.assertEqual(x.data_ptr(), 0)

    def test_view_occupies_nothing(self):
        x = allocate(MIB)
        before = torch.openreg.memory_allocated()
        views = [x[1:], x.view(2, -1), x[None].expand(3, -1)]
        self.assertEqual(torch.openreg.memory_allocated(), before)
        del views

    def test_peak_is_the_most_since_the_reset(self):
        x = allocate(4 * MIB)
        del x
        self.assertEqual(torch.openreg.max_memory_allocated(), self.allocated + 4 * MIB)
        torch.openreg.reset_peak_memory_stats()
        self.assertEqual(torch.openreg.max_memory_allocated(), self.allocated)

    def test_reserved_memory_stays_until_the_cache_is_emptied(self):
        before = torch.openreg.memory_reserved()
        x = allocate(30 * MIB)
        self.assertGreaterEqual(torch.openreg.memory_reserved(), before + 30 * MIB)
        del x
        self.assertGreaterEqual(torch.openreg.memory_reserved(), before + 30 * MIB)
        torch.openreg.empty_cache()
        self.assertEqual(torch.openreg.memory_reserved(), before)
        self.assertGreaterEqual(torch.openreg.max_memory_reserved(), before + 30 * MIB)

    def test_free_memory_falls_by_what_is_reserved(self):
        free, total = torch.openreg.mem_get_info()
        reserved = torch.openreg.memory_reserved()
        x = allocate(30 * MIB)
        grown = torch.openreg.memory_reserved() - reserved
        self.assertEqual(torch.openreg.mem_get_info(), (free - grown, total))
        del x
        torch.openreg.empty_cache()
        self.assertEqual(torch.openreg.mem_get_info(), (free, total))

    def test_accumulated_statistics_count_and_can_be_reset(self):
        torch.openreg.reset_accumulated_memory_stats()
        x = allocate(MIB)
        del x
        stats = torch.openreg.memory_stats()
        self.assertEqual(stats["allocated_bytes.all.allocated"], MIB)
        self.assertEqual(stats["allocated_bytes.all.freed"], MIB)
        self.assertEqual(stats["allocation.all.allocated"], 1)
        torch.openreg.reset_accumulated_memory_stats()
        self.assertEqual(torch.openreg.memory_stats()["allocated_bytes.all.allocated"], 0)

    def test_requested_bytes_are_not_rounded(self):
        before = torch.openreg.memory_stats()["requested_bytes.all.current"]
        x = allocate(700)
        self.assertEqual(torch.openreg.memory_stats()["requested_bytes.all.current"], before + 700)
        del x

    def test_pools_add_up(self):
        tensors = [allocate(size) for size in (1, 10 * KIB, 2 * MIB, 30 * MIB)]
        stats = torch.openreg.memory_stats()
        for quantity in ("allocation", "allocated_bytes", "reserved_bytes", "segment", "active"):
            self.assertEqual(
                stats[f"{quantity}.all.current"],
                stats[f"{quantity}.small_pool.current"] + stats[f"{quantity}.large_pool.current"],
            )
        del tensors

    def test_nested_statistics_hold_the_same_numbers(self):
        nested = torch.openreg.memory_stats_as_nested_dict()
        flat = torch.openreg.memory_stats()
        self.assertEqual(nested["active"]["all"]["peak"], flat["active.all.peak"])
        self.assertEqual(list(flat), sorted(flat))
        self.assertEqual(nested["num_ooms"], flat["num_ooms"])

    def test_summary_names_device_and_quantities(self):
        text = torch.openreg.memory_summary(LAST)
        for part in (f"{DEVICE_TYPE}:{LAST}", "Allocated memory", "Reserved memory", "large"):
            self.assertIn(part, text)
        self.assertNotIn("large", torch.openreg.memory_summary(LAST, abbreviated=True))

    @requires_two_devices
    def test_each_device_counts_for_itself(self):
        before = [torch.openreg.memory_allocated(i) for i in range(2)]
        x = allocate(2 * MIB, f"{DEVICE_TYPE}:1")
        self.assertEqual(torch.openreg.memory_allocated(0), before[0])
        self.assertEqual(torch.openreg.memory_allocated(f"{DEVICE_TYPE}:1"), before[1] + 2 * MIB)
        with torch.openreg.device(1):
            self.assertEqual(torch.openreg.memory_allocated(), before[1] + 2 * MIB)
        del x

    @parametrize(
        "function",
        [
            torch.openreg.mem_get_info,
            torch.openreg.memory_stats,
            torch.openreg.memory_allocated,
            torch.openreg.max_memory_reserved,
            torch.openreg.memory_summary,
            torch.openreg.reset_peak_memory_stats,
            torch.openreg.reset_accumulated_memory_stats,
        ],
    )
    def test_bad_device_is_refused_by(self, function):
        for device in (DEVICE_COUNT, -1, f"{DEVICE_TYPE}:{DEVICE_COUNT}"):
            with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
                function(device)
        with self.assertRaisesRegex(ValueError, f"expected {A_DEVICE}, got cpu"):
            function("cpu")

    def test_statistics_before_use_are_zero_and_create_no_device(self):
        run_child(
            """
            import torch
            from torch_openreg import _C
            o = torch.openreg
            assert o.memory_stats() == {} and o.memory_stats_as_nested_dict() == {}
            sizes = (o.memory_allocated(), o.max_memory_allocated(), o.memory_reserved(),
                     o.max_memory_reserved())
            assert sizes == (0, 0, 0, 0), sizes
            o.empty_cache()
            o.reset_peak_memory_stats()
            o.reset_accumulated_memory_stats()
            assert "Allocated memory" in o.memory_summary()
            assert not _C._is_device_active(0)
            """
        )


class TestOldNames(OpenRegTestCase):
    """What torch.cuda deprecates: they warn, and do what their successors do."""

    @parametrize("name", ["memory_cached", "max_memory_cached"])
    def test_question_is_renamed(self, name):
        successor = name.replace("cached", "reserved")
        x = torch.ones(100, device=DEVICE_TYPE)
        text = f"torch.{DEVICE_TYPE}.{name} has been renamed to torch.{DEVICE_TYPE}.{successor}"
        with self.assertWarnsRegex(FutureWarning, text) as caught:
            answer = getattr(torch.openreg, name)(0)
        self.assertEqual(caught.filename, __file__)
        self.assertGreater(answer, 0)
        self.assertEqual(answer, getattr(torch.openreg, successor)(x.device))

    @parametrize("name", ["reset_max_memory_allocated", "reset_max_memory_cached"])
    def test_reset_is_of_all_peaks(self, name):
        torch.ones(MIB, device=DEVICE_TYPE)
        self.assertGreater(torch.openreg.max_memory_allocated(), torch.openreg.memory_allocated())
        torch.openreg.empty_cache()
        self.assertGreater(torch.openreg.max_memory_reserved(), torch.openreg.memory_reserved())
        with self.assertWarnsRegex(FutureWarning, f"{name} now calls .*reset_peak_memory_stats"):
            getattr(torch.openreg, name)()
        self.assertEqual(torch.openreg.max_memory_allocated(), torch.openreg.memory_allocated())
        self.assertEqual(torch.openreg.max_memory_reserved(), torch.openreg.memory_reserved())


class TestReuse(OpenRegTestCase):
    # A unique size, so that no other test's cached block fits.
    SIZE = 37 * MIB

    def setUp(self):
        super().setUp()
        torch.openreg.synchronize()
        torch.openreg.empty_cache()

    def test_freed_memory_is_reused_on_its_stream(self):
        x = allocate(self.SIZE)
        address = x.data_ptr()
        del x
        self.assertEqual(allocate(self.SIZE).data_ptr(), address)

    def test_freed_memory_is_reused_before_the_work_on_it_is_done(self):
        x = allocate(self.SIZE)
        address = x.data_ptr()
        with StreamGate():
            x.fill_(1)
            del x
            y = allocate(self.SIZE)
            self.assertEqual(y.data_ptr(), address)
            y.fill_(2)
        self.assertEqual(y[:10].tolist(), [2] * 10)

    def test_freed_memory_is_not_reused_on_another_stream(self):
        x = allocate(self.SIZE)
        address = x.data_ptr()
        del x
        with torch.openreg.Stream():
            self.assertNotEqual(allocate(self.SIZE).data_ptr(), address)

    def test_record_stream_keeps_memory_until_the_other_stream_is_done(self):
        side = torch.openreg.Stream()
        x = allocate(self.SIZE)
        address = x.data_ptr()
        side.wait_stream(torch.openreg.current_stream())
        with StreamGate(side) as gate:
            with side:
                x.add_(1)
            x.record_stream(side)
            del x
            y = allocate(self.SIZE)
            self.assertNotEqual(y.data_ptr(), address)
            gate.open()
            side.synchronize()
        z = allocate(self.SIZE)
        self.assertEqual(z.data_ptr(), address)

    def test_neighbors_that_other_streams_are_done_with_together_are_joined_once(self):
        torch.openreg.empty_cache()
        side = torch.openreg.Stream()
        before = torch.openreg.memory_stats()["active.all.current"]
        tensors = [torch.empty(ROUNDING, dtype=torch.uint8, device=DEVICE_TYPE) for _ in range(8)]
        addresses = [x.data_ptr() for x in tensors]
        self.assertEqual(addresses, [addresses[0] + i * ROUNDING for i in range(8)])
        with StreamGate(side):
            for x in tensors:
                x.record_stream(side)
            del x, tensors
        side.synchronize()
        joined = torch.empty(8 * ROUNDING, dtype=torch.uint8, device=DEVICE_TYPE)
        self.assertEqual(joined.data_ptr(), addresses[0])
        self.assertEqual(torch.openreg.memory_stats()["active.all.current"], before + 1)

    def test_record_stream_of_the_own_stream_keeps_nothing(self):
        x = allocate(self.SIZE)
        address = x.data_ptr()
        with StreamGate():
            x.fill_(1)
            x.record_stream(torch.openreg.current_stream())
            del x
            self.assertEqual(allocate(self.SIZE).data_ptr(), address)

    def test_memory_used_on_a_destroyed_external_stream_is_reused(self):
        handle = _C._create_external_stream(0, 0)
        stream = torch.openreg.ExternalStream(handle, 0)
        x = allocate(self.SIZE)
        address = x.data_ptr()
        x.record_stream(stream)
        _C._destroy_external_stream(handle)
        del x
        self.assertEqual(allocate(self.SIZE).data_ptr(), address)

    def test_memory_used_on_a_destroyed_external_stream_waits_for_its_work(self):
        handle = _C._create_external_stream(0, 0)
        stream = torch.openreg.ExternalStream(handle, 0)
        x = allocate(self.SIZE)
        address = x.data_ptr()
        with StreamGate(stream) as gate:
            x.record_stream(stream)
            _C._destroy_external_stream(handle)
            del x  # waits for nothing
            self.assertNotEqual(allocate(self.SIZE).data_ptr(), address)
            gate.open()
        torch.openreg.synchronize()
        addresses = [y.data_ptr() for y in [allocate(self.SIZE) for _ in range(3)]]
        self.assertIn(address, addresses)

    def test_small_pieces_share_a_segment_and_join_again(self):
        before = torch.openreg.memory_stats()["segment.small_pool.current"]
        pieces = [allocate(KIB) for _ in range(100)]
        after = torch.openreg.memory_stats()["segment.small_pool.current"]
        self.assertLessEqual(after, before + 1)
        del pieces[::2]
        del pieces
        torch.openreg.empty_cache()
        self.assertLessEqual(torch.openreg.memory_stats()["segment.small_pool.current"], before)

    @parametrize("waiter", ["empty_cache", "allocation"])
    def test_freeing_and_allocating_do_not_wait_for_a_thread_that_waits(self, waiter):
        # In a separate process: it hangs if a call waits.
        output = run_child(
            """
            import sys, threading
            import torch
            from torch_openreg.testing import StreamGate
            MIB = 1 << 20
            side = torch.Stream("openreg")
            # The small segment first: behind the large one it would leave no range of 60 MiB.
            y = torch.zeros(4, device="openreg")
            x = torch.zeros(8 * MIB, dtype=torch.uint8, device="openreg")
            torch.openreg.synchronize()

            def wait():
                waiting.set()
                if sys.argv[-1] == "empty_cache":
                    torch.accelerator.empty_cache()
                else:
                    torch.empty(60 * MIB, dtype=torch.uint8, device="openreg")

            waiting, waited = threading.Event(), threading.Event()
            thread = threading.Thread(target=lambda: (wait(), waited.set()))
            with StreamGate(side) as gate:
                x.record_stream(side)
                del x
                retries = torch.openreg.memory_stats()["num_sync_all_streams"]
                thread.start()
                while torch.openreg.memory_stats()["num_sync_all_streams"] == retries:
                    pass  # not yet where it waits
                for _ in range(100):
                    z = torch.zeros(4, device="openreg")
                    z.record_stream(side)
                    del z
                del y
                torch.openreg.memory_snapshot()
                assert not waited.is_set()
                gate.open()
            thread.join()
            print("done")
            """.replace("sys.argv[-1]", repr(waiter)),
            {"OPENREG_DEVICE_MEMORY": "64MiB"},
        )
        self.assertEqual(output.strip(), "done")

    def test_allocation_does_not_wait_for_the_device(self):
        with StreamGate():
            tensors = [allocate(self.SIZE) for _ in range(3)]
            self.assertFalse(torch.openreg.current_stream().query())
        del tensors


class TestPinnedMemory(OpenRegTestCase):
    def test_pinned_tensor_says_so(self):
        self.assertTrue(torch.empty(10, pin_memory=True).is_pinned())
        self.assertTrue(torch.empty(10).pin_memory().is_pinned())
        self.assertFalse(torch.empty(10).is_pinned())
        self.assertFalse(torch.empty(10, device=DEVICE_TYPE).is_pinned())

    def test_pinned_tensor_is_a_cpu_tensor(self):
        x = torch.arange(5).pin_memory()
        self.assertEqual(x.device, torch.device("cpu"))
        self.assertEqual((x + 1).tolist(), [1, 2, 3, 4, 5])

    def test_non_blocking_copy_from_pinned_memory_does_not_wait(self):
        x = torch.arange(1000).pin_memory()
        with StreamGate() as gate:
            y = x.to(DEVICE_TYPE, non_blocking=True)
            self.assertFalse(torch.openreg.current_stream().query())
            gate.open()
        self.assert_bit_equal(y, x)

    @pytest.mark.openreg_sanitizer(expect="host")  # it reads before the copy has run
    def test_non_blocking_copy_to_pinned_memory_does_not_wait(self):
        x = torch.arange(1000, device=DEVICE_TYPE)
        y = torch.zeros(1000, dtype=torch.int64, pin_memory=True)
        torch.openreg.synchronize()
        with StreamGate() as gate:
            y.copy_(x, non_blocking=True)
            self.assertEqual(int(y.sum()), 0)
            gate.open()
            torch.openreg.synchronize()
        self.assertEqual(y, torch.arange(1000))

    def test_pageable_source_may_be_changed_after_a_non_blocking_copy(self):
        x = torch.ones(1000)
        y = x.to(DEVICE_TYPE, non_blocking=True)
        x.zero_()
        self.assert_bit_equal(y, torch.ones(1000))

    def test_freed_pinned_memory_is_not_reused_while_a_copy_uses_it(self):
        size = 5 * MIB
        x = torch.ones(size, dtype=torch.uint8, pin_memory=True)
        address = x.data_ptr()
        with StreamGate() as gate:
            y = x.to(DEVICE_TYPE, non_blocking=True)
            del x
            self.assertNotEqual(
                torch.zeros(size, dtype=torch.uint8, pin_memory=True).data_ptr(), address
            )
            gate.open()
        self.assertEqual(int(y.sum()), size)


class TestResize(OpenRegTestCase):
    def test_storage_grows_and_keeps_its_contents(self):
        x = torch.arange(10, device=DEVICE_TYPE)
        x.resize_(1000)
        self.assertEqual(x[:10].tolist(), list(range(10)))

    def test_storage_grows_in_stream_order(self):
        x = torch.zeros(10, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate():
            x.fill_(7)
            x.resize_(5000)
        self.assertEqual(x[:10].tolist(), [7.0] * 10)

    def test_storage_grows_from_nothing(self):
        x = torch.empty(0, device=DEVICE_TYPE)
        x.resize_(4).fill_(3)
        self.assertEqual(x.tolist(), [3.0] * 4)

    @requires_two_devices
    def test_storage_grows_on_its_own_device(self):
        x = torch.ones(4, device=f"{DEVICE_TYPE}:1")
        x.resize_(100)
        self.assertEqual(x.device, torch.device(f"{DEVICE_TYPE}:1"))
        self.assertEqual(x[:4].tolist(), [1.0] * 4)

    def test_untyped_storage_can_be_resized(self):
        storage = torch.arange(8, dtype=torch.uint8, device=DEVICE_TYPE).untyped_storage()
        storage.resize_(16)
        self.assertEqual(storage.nbytes(), 16)
        storage.resize_(0)
        self.assertEqual(storage.nbytes(), 0)


instantiate_parametrized_tests(TestLazyClone)
instantiate_parametrized_tests(TestOldNames)
instantiate_parametrized_tests(TestReuse)
instantiate_parametrized_tests(TestStatistics)

if __name__ == "__main__":
    run_tests()
