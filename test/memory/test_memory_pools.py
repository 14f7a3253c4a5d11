"""Private pools, memory without tensors, limits, garbage collection and settings."""

import gc
import threading

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_program,
    run_tests,
)

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.22)

memory = torch.openreg.memory
MIB = 1024 * 1024
SMALL_DEVICE = {"OPENREG_DEVICE_MEMORY": "64MiB"}


def allocate(size, device=DEVICE_TYPE):
    return torch.empty(size, dtype=torch.uint8, device=device)


class MemoryTestCase(OpenRegTestCase):
    SIZE = 47 * MIB  # no cached block of another test fits

    def setUp(self):
        super().setUp()
        gc.collect()
        torch.accelerator.synchronize()
        torch.openreg.empty_cache()


class TestMemPool(MemoryTestCase):
    def test_what_is_allocated_comes_from_the_pool(self):
        pool = memory.MemPool()
        with memory.use_mem_pool(pool):
            x = allocate(self.SIZE)
        y = allocate(self.SIZE)
        (segment,) = pool.snapshot()
        self.assertEqual(segment["address"], x.data_ptr())
        self.assertEqual(segment["segment_pool_id"], pool.id)
        self.assertNotIn(y.data_ptr(), [b["address"] for b in segment["blocks"]])

    def test_memory_stays_in_the_pool(self):
        pool = memory.MemPool()
        with memory.use_mem_pool(pool):
            x = allocate(self.SIZE)
            address = x.data_ptr()
            del x
        torch.openreg.empty_cache()
        self.assertNotEqual(allocate(self.SIZE).data_ptr(), address)
        with memory.use_mem_pool(pool):
            self.assertEqual(allocate(self.SIZE).data_ptr(), address)

    def test_pool_gives_its_memory_back_when_it_is_gone(self):
        before = torch.openreg.memory_reserved()
        pool = memory.MemPool()
        with memory.use_mem_pool(pool):
            x = allocate(self.SIZE)
        del pool
        self.assertGreater(torch.openreg.memory_reserved(), before)
        x.fill_(1)
        self.assertEqual(x[-1].item(), 1)
        del x
        torch.openreg.empty_cache()
        self.assertEqual(torch.openreg.memory_reserved(), before)

    def test_pool_without_tensors_gives_its_memory_back_at_once(self):
        before = torch.openreg.memory_reserved()
        pool = memory.MemPool()
        with memory.use_mem_pool(pool):
            allocate(self.SIZE)
        self.assertGreater(torch.openreg.memory_reserved(), before)
        del pool
        self.assertEqual(torch.openreg.memory_reserved(), before)

    def test_users_are_counted(self):
        pool = memory.MemPool()
        self.assertEqual(pool.use_count(), 1)
        with memory.use_mem_pool(pool):
            self.assertEqual(pool.use_count(), 2)
        self.assertEqual(pool.use_count(), 1)

    def test_pools_nest(self):
        outer, inner = memory.MemPool(), memory.MemPool()
        self.assertNotEqual(outer.id, inner.id)
        with memory.use_mem_pool(outer):
            x = allocate(10)
            with memory.use_mem_pool(inner):
                y = allocate(10)
            z = allocate(10)
        for pool, tensors in ((outer, [x, z]), (inner, [y])):
            blocks = {b["address"] for s in pool.snapshot() for b in s["blocks"]}
            for tensor in (x, y, z):
                is_mine = any(tensor is mine for mine in tensors)
                self.assertEqual(tensor.data_ptr() in blocks, is_mine)

    def test_other_threads_are_not_affected(self):
        pool = memory.MemPool()
        found = []
        with memory.use_mem_pool(pool):
            thread = threading.Thread(target=lambda: found.append(allocate(self.SIZE)))
            thread.start()
            thread.join()
        self.assertEqual(pool.snapshot(), [])
        self.assertEqual(len(found), 1)

    def test_pool_is_left_when_an_exception_passes(self):
        pool = memory.MemPool()
        with self.assertRaises(KeyError), memory.use_mem_pool(pool):
            raise KeyError
        allocate(self.SIZE)
        self.assertEqual(pool.snapshot(), [])

    def test_pool_cannot_be_used_twice_at_a_time(self):
        pool = memory.MemPool()
        with memory.use_mem_pool(pool):
            again = memory.use_mem_pool(pool)
            with self.assertRaisesRegex(RuntimeError, "already being allocated to"):
                again.__enter__()
            allocate(self.SIZE)
        self.assertEqual(len(pool.snapshot()), 1)
        self.assertEqual(pool.use_count(), 1)

    @requires_two_devices
    def test_capture_that_one_device_refuses_leaves_no_other_redirected(self):
        with torch.openreg.device(1):
            pool = memory.MemPool()
        graph = torch.openreg.Graph()
        with memory.use_mem_pool(pool), torch.openreg.Stream(0):
            with self.assertRaisesRegex(RuntimeError, "already being allocated to"):
                graph.capture_begin(pool=pool.id)
            x = allocate(self.SIZE)
        self.assertEqual(pool.use_count(), 1)
        x = torch.ones(4, device=f"{DEVICE_TYPE}:0")
        torch.openreg.synchronize()
        with torch.openreg.graph(graph, pool=pool.id):
            x.add_(1)
        graph.replay()
        self.assertEqual(x.tolist(), [2.0] * 4)
        graph.reset()
        self.assertEqual(pool.use_count(), 1)

    @requires_two_devices
    def test_pool_belongs_to_the_current_device(self):
        with torch.openreg.device(1):
            pool = memory.MemPool()
        self.assertEqual(pool.device, torch.device(f"{DEVICE_TYPE}:1"))
        with self.assertRaisesRegex(ValueError, f"expected the pool's device {DEVICE_TYPE}:1"):
            memory.use_mem_pool(pool, 0).__enter__()
        with memory.use_mem_pool(pool, f"{DEVICE_TYPE}:1"):
            x = allocate(self.SIZE)
            y = allocate(self.SIZE, f"{DEVICE_TYPE}:1")
        self.assertEqual([s["address"] for s in pool.snapshot()], [y.data_ptr()])
        del x

    def test_statistics_count_the_pool(self):
        pool = memory.MemPool()
        before = torch.openreg.memory_reserved()
        with memory.use_mem_pool(pool):
            x = allocate(self.SIZE)
            y = allocate(1)
        reserved = torch.openreg.memory_reserved() - before
        name = f"reserved_bytes_by_private_pools.{pool.id}"
        stats = torch.openreg.memory_stats()
        self.assertEqual(stats[f"{name}.all.current"], reserved)
        self.assertEqual(stats[f"{name}.small_pool.current"], 2 * MIB)
        self.assertEqual(stats[f"{name}.large_pool.current"], reserved - 2 * MIB)
        del x, y, pool
        stats = torch.openreg.memory_stats()
        self.assertEqual(stats[f"{name}.all.current"], 0)
        self.assertEqual(stats[f"{name}.all.peak"], reserved)
        self.assertTrue(_C._is_allocator_valid(0))

    def test_out_of_memory_text_names_what_pools_hold(self):
        run_program(
            """
            import torch
            pool = torch.openreg.MemPool()
            with torch.openreg.use_mem_pool(pool):
                torch.empty(30 << 20, dtype=torch.uint8, device="openreg")
            try:
                torch.empty(60 << 20, dtype=torch.uint8, device="openreg")
            except torch.OutOfMemoryError as error:
                assert "rivate pools" in str(error) and "30.00 MiB" in str(error), error
            else:
                raise AssertionError
            """,
            SMALL_DEVICE,
        )

    def test_pool_that_may_serve_others_does_before_memory_runs_out(self):
        run_program(
            """
            import torch
            MIB = 1 << 20
            allocate = lambda size: torch.empty(size, dtype=torch.uint8, device="openreg")
            closed, open_ = torch.openreg.MemPool(), torch.openreg.MemPool(use_on_oom=True)
            with torch.openreg.use_mem_pool(closed):
                x = allocate(20 * MIB)
            with torch.openreg.use_mem_pool(open_):
                y = allocate(30 * MIB)
            address = y.data_ptr()
            del x, y
            z = allocate(25 * MIB)
            assert z.data_ptr() == address
            assert torch.openreg.memory_stats()["num_ooms"] == 0
            try:
                allocate(18 * MIB)  # the closed pool would have room for it
            except torch.OutOfMemoryError as error:
                assert "rivate pools" in str(error) and "50.00 MiB" in str(error), error
            else:
                raise AssertionError
            del z
            with torch.openreg.use_mem_pool(open_):
                assert allocate(28 * MIB).data_ptr() == address
            """,
            SMALL_DEVICE,
        )

    def test_pool_that_is_gone_serves_nobody(self):
        run_program(
            """
            import torch
            allocate = lambda size: torch.empty(size << 20, dtype=torch.uint8, device="openreg")
            for _ in range(10):
                pool = torch.openreg.MemPool(use_on_oom=True)
                with torch.openreg.use_mem_pool(pool):
                    x = allocate(50)
                del x, pool
            x, y = allocate(25), allocate(25)
            """,
            SMALL_DEVICE,
        )

    def test_blocks_of_a_pool_without_splits_are_segments(self):
        pools = memory.MemPool(), memory.MemPool(no_split=True)
        tensors = []
        for pool in pools * 2:
            with memory.use_mem_pool(pool):
                tensors.append(allocate(4 * MIB))
                tensors.append(allocate(4096))
        split, whole = (pool.snapshot() for pool in pools)
        self.assertEqual([len(segment["blocks"]) for segment in whole], [1, 1, 1, 1])
        self.assertEqual([len(segment["blocks"]) for segment in split], [3, 3])
        self.assertTrue(_C._is_allocator_valid(0))
        with memory.use_mem_pool(pools[1]):
            address = tensors.pop().data_ptr()
            self.assertEqual(allocate(1024).data_ptr(), address)

    def test_options_that_are_no_booleans_are_refused(self):
        with self.assertRaisesRegex(TypeError, "MemPool: expected a bool as no_split, got 1"):
            memory.MemPool(no_split=1)

    def test_pool_may_outlive_the_program(self):
        run_child(
            """
            import torch
            pool = torch.openreg.MemPool()
            context = torch.openreg.use_mem_pool(pool)
            context.__enter__()
            x = torch.ones(10, device="openreg")
            """
        )


class TestRawMemory(MemoryTestCase):
    def test_memory_without_a_tensor_counts_and_comes_back(self):
        before = torch.openreg.memory_allocated()
        address = torch.openreg.caching_allocator_alloc(1000)
        self.assertEqual(torch.openreg.memory_allocated(), before + 1024)
        torch.openreg.caching_allocator_delete(address)
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_memory_is_reused_in_the_order_of_its_stream(self):
        side = torch.openreg.Stream()
        address = torch.openreg.caching_allocator_alloc(self.SIZE, stream=side)
        torch.openreg.caching_allocator_delete(address)
        self.assertNotEqual(allocate(self.SIZE).data_ptr(), address)
        with side:
            self.assertEqual(allocate(self.SIZE).data_ptr(), address)

    def test_nothing_has_the_address_0(self):
        self.assertEqual(torch.openreg.caching_allocator_alloc(0), 0)
        torch.openreg.caching_allocator_delete(0)

    def test_foreign_address_is_refused(self):
        x = allocate(100)
        address = torch.openreg.caching_allocator_alloc(100)
        torch.openreg.caching_allocator_delete(address)
        for wrong in (x.data_ptr(), address, 12345):
            with self.assertRaisesRegex(ValueError, "expected an address that"):
                torch.openreg.caching_allocator_delete(wrong)
        self.assertTrue(_C._is_allocator_valid(0))

    def test_bad_arguments_are_refused(self):
        with self.assertRaisesRegex(ValueError, "expected a size of at least 0, got -1"):
            torch.openreg.caching_allocator_alloc(-1)
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            torch.openreg.caching_allocator_alloc(1, DEVICE_COUNT)
        with self.assertRaises(torch.OutOfMemoryError):
            torch.openreg.caching_allocator_alloc(1 << 60)

    @requires_two_devices
    def test_stream_must_be_of_the_device(self):
        with self.assertRaisesRegex(ValueError, "device 0 and a stream of device 1"):
            torch.openreg.caching_allocator_alloc(1, 0, torch.openreg.Stream(1))


class TestLimits(MemoryTestCase):
    def test_fraction_is_a_limit_of_what_is_reserved(self):
        run_program(
            """
            import torch
            MIB = 1 << 20
            allocate = lambda size: torch.empty(size, dtype=torch.uint8, device="openreg")
            assert torch.openreg.get_per_process_memory_fraction() == 1.0
            torch.openreg.set_per_process_memory_fraction(0.5)
            assert torch.openreg.get_per_process_memory_fraction() == 0.5
            x = allocate(20 * MIB)
            try:
                allocate(20 * MIB)
            except torch.OutOfMemoryError as error:
                text = str(error)
                assert "may reserve 32.00 MiB" in text or "32.00 MiB allowed" in text, error
            else:
                raise AssertionError
            y = allocate(12 * MIB)
            del x
            z = allocate(18 * MIB)  # the cache is given up first
            torch.openreg.set_per_process_memory_fraction(1.0)
            allocate(30 * MIB)
            """,
            SMALL_DEVICE,
        )

    @parametrize("fraction", [-0.1, 1.1, float("nan")])
    def test_bad_fraction_is_refused(self, fraction):
        with self.assertRaisesRegex(ValueError, "expected a fraction from 0 to 1, got"):
            torch.openreg.set_per_process_memory_fraction(fraction)
        for value, name in ((1, "int"), (True, "bool"), ("1", "str")):
            with self.assertRaisesRegex(TypeError, f"expected a float as fraction, got {name}"):
                torch.openreg.set_per_process_memory_fraction(value)

    def test_garbage_is_collected_above_the_threshold(self):
        # Four segments of 12 MiB in the cache of a device of 64 MiB; the threshold is 32 MiB. A
        # request none of them fits releases the ones that were passed over most often.
        run_program(
            """
            import torch
            MIB = 1 << 20
            allocate = lambda size: torch.empty(size, dtype=torch.uint8, device="openreg")
            tensors = [allocate(12 * MIB) for _ in range(4)]
            addresses = [x.data_ptr() for x in tensors]
            for _ in range(4):
                del tensors[0]
                allocate(100)
            x = allocate(14 * MIB)
            stats = torch.openreg.memory_stats()
            assert stats["num_alloc_retries"] == 0, stats
            assert stats["num_device_free"] == 2, stats
            kept = [s["address"] for s in torch.openreg.memory_snapshot()
                    if s["total_size"] == 12 * MIB]
            assert sorted(kept) == sorted(addresses[2:]), (kept, addresses)
            """,
            {**SMALL_DEVICE, "PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.5"},
        )

    def test_other_streams_work_is_waited_for_before_out_of_memory(self):
        run_program(
            """
            import torch
            side = torch.openreg.Stream()
            x = torch.empty(50 << 20, dtype=torch.uint8, device="openreg")
            with side:
                x.fill_(1)
            x.record_stream(side)
            del x
            torch.empty(50 << 20, dtype=torch.uint8, device="openreg")
            assert torch.openreg.memory_stats()["num_sync_all_streams"] <= 1
            """,
            SMALL_DEVICE,
        )


class TestSettings(OpenRegTestCase):
    def test_unknown_key_is_refused(self):
        with self.assertRaisesRegex(ValueError, "Unrecognized key 'no_such_key'"):
            torch._C._accelerator_setAllocatorSettings("no_such_key:1")

    def test_unknown_key_of_the_environment_is_refused_at_first_use(self):
        run_program(
            """
            import torch
            for _ in range(2):
                try:
                    torch.ones(1, device="openreg")
                except ValueError as error:
                    assert "Unrecognized key 'no_such_key'" in str(error), error
                else:
                    raise AssertionError
            """,
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:20,no_such_key:[1,2],x:1"},
        )

    def test_settings_made_later_count_from_then_on(self):
        run_program(
            """
            import torch
            MIB = 1 << 20
            allocate = lambda size: torch.empty(size, dtype=torch.uint8, device="openreg")
            x = allocate(30 * MIB)
            torch._C._accelerator_setAllocatorSettings("max_split_size_mb:21")
            del x  # it was no oversize allocation when it was made
            y = allocate(40 * MIB)
            stats = torch.openreg.memory_stats()
            assert stats["max_split_size"] == 21 * MIB
            assert stats["oversize_allocations.current"] == 1
            assert stats["oversize_allocations.freed"] == 0
            del y
            torch.openreg.empty_cache()
            stats = torch.openreg.memory_stats()
            assert stats["oversize_allocations.current"] == 0
            assert stats["oversize_segments.current"] == 0
            """
        )


class TestHostMemory(MemoryTestCase):
    def test_statistics_follow_pinned_tensors(self):
        torch.openreg.empty_host_cache()
        torch.openreg.reset_accumulated_host_memory_stats()
        torch.openreg.reset_peak_host_memory_stats()
        before = torch.openreg.host_memory_stats()
        x = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
        now = torch.openreg.host_memory_stats()
        size = 4 * MIB  # a power of two
        self.assertEqual(now["active_bytes.current"], before["active_bytes.current"] + size)
        self.assertEqual(now["active_requests.current"], before["active_requests.current"] + 1)
        self.assertEqual(now["allocated_bytes.current"], before["allocated_bytes.current"] + size)
        self.assertEqual(now["host_alloc_time.count"], 1)
        self.assertEqual(now["num_host_alloc"], 1)
        del x
        now = torch.openreg.host_memory_stats()
        self.assertEqual(now["active_bytes.current"], before["active_bytes.current"])
        self.assertEqual(now["allocated_bytes.current"], before["allocated_bytes.current"] + size)
        torch.openreg.empty_host_cache()
        now = torch.openreg.host_memory_stats()
        self.assertEqual(now["allocated_bytes.current"], before["allocated_bytes.current"])
        self.assertEqual(now["num_host_free"], 1)
        self.assertEqual(list(now), sorted(now))

    def test_peak_and_totals_can_be_reset(self):
        x = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
        del x
        torch.openreg.reset_accumulated_host_memory_stats()
        torch.openreg.reset_peak_host_memory_stats()
        stats = torch.openreg.host_memory_stats()
        self.assertEqual(stats["active_bytes.peak"], stats["active_bytes.current"])
        self.assertEqual(stats["active_bytes.allocated"], 0)

    def test_cached_pinned_memory_is_used_again(self):
        x = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
        address = x.data_ptr()
        del x
        y = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
        self.assertEqual(y.data_ptr(), address)

    def test_pinned_memory_in_use_is_not_given_back(self):
        size = 6 * MIB
        x = torch.ones(size, dtype=torch.uint8).pin_memory()
        with StreamGate() as gate:
            y = x.to(DEVICE_TYPE, non_blocking=True)
            del x
            torch.openreg.empty_host_cache()
            gate.open()
        self.assertEqual(int(y.sum()), size)

    def test_before_use_there_is_nothing(self):
        run_child(
            """
            import torch
            assert torch.openreg.host_memory_stats() == {}
            torch.openreg.empty_host_cache()
            torch.openreg.reset_peak_host_memory_stats()
            torch.openreg.reset_accumulated_host_memory_stats()
            """
        )


instantiate_parametrized_tests(TestLimits)

if __name__ == "__main__":
    run_tests()
