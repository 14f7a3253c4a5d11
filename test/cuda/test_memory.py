"""``torch.cuda.memory``: statistics, snapshots, pools and limits."""

import pickle
import tempfile
from pathlib import Path

import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
)

MIB = 1 << 20


class TestMemory(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        torch.cuda.init()
        torch.cuda.empty_cache()

    def test_allocated_and_peak(self):
        before = torch.cuda.memory_allocated()
        reserved = torch.cuda.memory_reserved()
        x = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(torch.cuda.memory_allocated() - before, 4 * MIB)
        torch.cuda.reset_peak_memory_stats()
        y = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        del x, y
        self.assertEqual(torch.cuda.max_memory_allocated() - before, 6 * MIB)
        self.assertGreaterEqual(torch.cuda.memory_reserved(), before + 4 * MIB)
        torch.cuda.empty_cache()
        self.assertEqual(torch.cuda.memory_reserved(), reserved)

    def test_stats_have_the_names_of_cuda(self):
        torch.ones(1, device="cuda")
        stats = torch.cuda.memory_stats()
        for name in (
            "allocated_bytes.all.current",
            "reserved_bytes.large_pool.peak",
            "inactive_split_bytes.small_pool.freed",
            "num_alloc_retries",
            "num_ooms",
            "oversize_segments.current",
        ):
            self.assertIn(name, stats)
        summary = torch.cuda.memory_summary()
        self.assertIn("PyTorch CUDA memory summary, device ID 0", summary)
        self.assertIn("| Allocated memory", summary)

    def test_accumulated_stats_are_reset(self):
        torch.ones(1, device="cuda")
        torch.cuda.reset_accumulated_memory_stats()
        self.assertEqual(torch.cuda.memory_stats()["allocation.all.allocated"], 0)

    def test_mem_get_info_and_fraction(self):
        free, total = torch.cuda.mem_get_info()
        self.assertLessEqual(free, total)
        self.assertEqual(total, torch.cuda.get_device_properties(0).total_memory)
        torch.cuda.set_per_process_memory_fraction(0.25)
        try:
            self.assertEqual(torch.cuda.get_per_process_memory_fraction(), 0.25)
            with self.assertRaises(torch.cuda.OutOfMemoryError):
                torch.empty(total // 2, dtype=torch.uint8, device="cuda")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def test_out_of_memory_says_cuda(self):
        with self.assertRaisesRegex(torch.OutOfMemoryError, "CUDA out of memory. Tried"):
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    def test_history_and_snapshot(self):
        torch.cuda.memory._record_memory_history(max_entries=1000)
        try:
            self.assertTrue(torch._C._cuda_isHistoryEnabled())
            x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
            snapshot = torch.cuda.memory._snapshot()
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "snapshot.pickle"
                torch.cuda.memory._dump_snapshot(str(file))
                self.assertEqual(set(pickle.loads(file.read_bytes())), set(snapshot))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        self.assertFalse(torch._C._cuda_isHistoryEnabled())
        events = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
        (event,) = [e for e in events if e["addr"] == x.data_ptr()]
        self.assertIn("test_history_and_snapshot", {frame["name"] for frame in event["frames"]})
        blocks = {b["address"]: b for s in snapshot["segments"] for b in s["blocks"]}
        self.assertEqual(blocks[x.data_ptr()]["state"], "active_allocated")
        frames = torch.cuda.memory._allocation_traceback(x.data_ptr())
        self.assertIn("test_history_and_snapshot", {frame["name"] for frame in frames})
        self.assertIsNone(torch.cuda.memory._allocation_traceback(1))

    def test_legacy_form_of_the_history(self):
        torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=10)
        torch.cuda.memory._record_memory_history(False)
        self.assertFalse(torch._C._cuda_isHistoryEnabled())

    def test_mem_pool(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.ones(MIB, device="cuda")
        y = torch.ones(MIB, device="cuda")
        addresses = [block["address"] for segment in pool.snapshot() for block in segment["blocks"]]
        self.assertIn(x.data_ptr(), addresses)
        self.assertNotIn(y.data_ptr(), addresses)
        self.assertEqual(pool.use_count(), 1)

    def test_pluggable_allocators_are_refused(self):
        with self.assertRaisesRegex(NotImplementedError, "torch_openreg has one allocator"):
            torch.cuda.MemPool(use_on_oom=True)
        with self.assertRaisesRegex(NotImplementedError, "has one allocator"):
            torch.cuda.memory._get_current_allocator()

    def test_raw_allocations(self):
        side = torch.cuda.Stream()
        for stream in (None, side):
            before = torch.cuda.memory_allocated()
            address = torch.cuda.caching_allocator_alloc(MIB, stream=stream)
            self.assertEqual(torch.cuda.memory_allocated() - before, MIB)
            torch.cuda.caching_allocator_delete(address)
            self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_host_memory(self):
        x = torch.ones(MIB).pin_memory()
        self.assertTrue(x.is_pinned())
        self.assertGreaterEqual(torch.cuda.host_memory_stats()["active_bytes.current"], 4 * MIB)
        torch.cuda.reset_peak_host_memory_stats()
        torch.cuda.reset_accumulated_host_memory_stats()
        self.assertEqual(torch.cuda.host_memory_stats()["num_host_alloc"], 0)

    @parametrize("value", ["expandable_segments:True", "garbage_collection_threshold:0.8"])
    def test_settings_of_cuda_are_known(self, value):
        program = "import torch; print(torch.ones(2, device='cuda').sum().item())"
        run = run_program(program, {"PYTORCH_CUDA_ALLOC_CONF": value})
        self.assertEqual(run.stdout.strip(), "2.0")


instantiate_parametrized_tests(TestMemory)

if __name__ == "__main__":
    run_tests()
