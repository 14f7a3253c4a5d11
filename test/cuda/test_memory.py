"""``torch.cuda.memory``: statistics, snapshots, pools and limits."""

import pickle
import re
import tempfile
import threading
import unittest
import warnings
from pathlib import Path

import pytest
import torch
from common import (
    BUILD_HAS_CUDA,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_children,
    run_program,
    run_tests,
)

pytestmark = pytest.mark.sample(0.15)

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
        with self.assertRaisesRegex(
            torch.OutOfMemoryError,
            "CUDA out of memory. Tried to allocate 1048576.00 GiB. GPU 0 has a total capacity of ",
        ):
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

    def test_history_has_the_metadata_of_the_thread_that_allocates(self):
        torch.cuda.memory._record_memory_history(max_entries=1000, clear_history=True)
        try:
            torch.cuda.memory._set_memory_metadata("step 3")
            self.assertEqual(torch.cuda.memory._get_memory_metadata(), "step 3")
            x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
            other = threading.Thread(target=lambda: torch.empty(5 * MIB, device="cuda"))
            other.start()
            other.join()
            torch.cuda.memory._set_memory_metadata("")
            del x
            events = torch.cuda.memory._snapshot()["device_traces"][0]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
            torch.cuda.memory._set_memory_metadata("")
        found = {
            (e["action"], e["size"] // MIB): e["user_metadata"]
            for e in events
            if e["action"] in ("alloc", "free_completed")
        }
        self.assertEqual(found["alloc", 3], "step 3")
        self.assertEqual(found["alloc", 20], "")
        self.assertEqual(found["free_completed", 3], "")

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

    def test_options_of_a_mem_pool(self):
        pool = torch.cuda.MemPool(use_on_oom=True, no_split=True)
        with torch.cuda.use_mem_pool(pool):
            x = torch.ones(MIB, device="cuda")
        self.assertEqual([len(segment["blocks"]) for segment in pool.snapshot()], [1])
        self.assertEqual(x.sum().item(), MIB)

    def test_pluggable_allocators_are_refused(self):
        with self.assertRaisesRegex(NotImplementedError, "torch_openreg has one allocator"):
            torch.cuda.MemPool(allocator=object())
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

    def test_out_of_memory_beyond_an_exabyte(self):
        for size, text in ((8 * 10**8, "800000000.00 GiB"), (8 * 10**9, "more than 1EB memory")):
            with self.assertRaisesRegex(torch.OutOfMemoryError, f"Tried to allocate {text}"):
                torch.empty(size << 30, dtype=torch.int8, device="cuda")

    def test_observers_hear_of_each_failed_allocation(self):
        program = """
        import torch
        calls = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *call: calls.append(call))
        torch._C._cuda_attach_out_of_memory_observer(lambda *_: calls.append(torch.ones(1).sum()))
        total = torch.cuda.get_device_properties(0).total_memory
        x = torch.ones(1, device="cuda")
        for device in (0, 1):
            try:
                torch.empty(2 * total, dtype=torch.uint8, device=f"cuda:{device}")
            except torch.OutOfMemoryError:
                pass
        assert [call[:3] for call in calls[::2]] == [(i, 2 * total, total) for i in (0, 1)], calls
        assert 0 < calls[0][3] < total and calls[2][3] == total, calls
        """
        run_program(program)

    def test_error_of_an_observer_takes_the_place_of_the_error(self):
        program = """
        import torch
        def observe(*_):
            raise ValueError("observed")
        torch._C._cuda_attach_out_of_memory_observer(observe)
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except (ValueError, RuntimeError) as error:
            print(error)
        """
        self.assertIn("observed", run_program(program).stdout)


GOOD_SETTINGS = (
    "expandable_segments:True",
    "garbage_collection_threshold:0.8",
    "backend:native",
    "backend:cudaMallocAsync",
    "release_lock_on_cudamalloc:True",
    "release_lock_on_hipmalloc:False",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
    "pinned_use_hip_host_register:False",
    "pinned_num_register_threads:128",
    "pinned_reserve_segment_size_mb:64",
    "pinned_free_catch_all:True",
    "throw_on_cudamalloc_oom:True",
    "graph_capture_record_stream_reuse:True",
    "expandable_segments_reserve:0.5",
    "expandable_segments_reserve_by_class:4G",
    "max_split_size_mb:64, backend:cudaMallocAsync, roundup_power2_divisions:[64:8,>:1]",
)
BAD_SETTINGS = (
    ("backend:jemalloc", "backend is invalid: expected native or cudaMallocAsync, got 'jemalloc'"),
    (
        "release_lock_on_cudamalloc:1",
        "release_lock_on_cudamalloc is invalid: expected True or False",
    ),
    ("pinned_num_register_threads:3", "expected a power of 2 from 1 to 128"),
    ("pinned_num_register_threads:256", "expected a power of 2 from 1 to 128"),
    ("pinned_reserve_segment_size_mb:0", "expected a number of MiB, at least 1"),
    ("per_process_memory_fraction:1.5", "expected a number from 0.0 to 1.0"),
    ("per_process_memory_fraction:half", "expected a number from 0.0 to 1.0"),
    ("graph_capture_record_stream_reuse:yes", "expected True or False"),
    ("expandable_segments_reserve:0", "expected a share of the memory, or a size such as 4G"),
    ("backnd:native", "Unrecognized key 'backnd'"),
    ("max_split_size_mb:64,releas_lock:True", "Unrecognized key 'releas_lock'"),
)


class TestSettings(OpenRegTestCase):
    """PYTORCH_CUDA_ALLOC_CONF; Note [Keys of CUDA's allocator]."""

    PROGRAM = """
    import torch
    x = torch.ones(2, device="cuda")
    print(x.sum().item(), torch.cuda.get_allocator_backend())
    """

    def run_with(self, variable, values):
        return run_children([(self.PROGRAM, {variable: value}) for value in values])

    @parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
    def test_keys_of_cuda_are_known(self, variable):
        for value, run in zip(GOOD_SETTINGS, self.run_with(variable, GOOD_SETTINGS), strict=True):
            with self.subTest(value=value):
                self.assertEqual(run.returncode, 0, run.output)
                self.assertEqual(run.output.splitlines()[-1], "2.0 native")

    def test_bad_values_and_misspelled_keys_are_errors(self):
        runs = self.run_with("PYTORCH_CUDA_ALLOC_CONF", [value for value, _ in BAD_SETTINGS])
        for (value, text), run in zip(BAD_SETTINGS, runs, strict=True):
            with self.subTest(value=value):
                self.assertEqual(run.returncode, 1)
                self.assertIn(text, run.output)

    def test_a_program_may_set_them(self):
        warnings.simplefilter("ignore", FutureWarning)  # torch prefers another name
        for value in GOOD_SETTINGS:
            torch.cuda.memory._set_allocator_settings(value)
        for value, text in BAD_SETTINGS:
            with self.subTest(value=value), self.assertRaisesRegex(ValueError, re.escape(text)):
                torch.cuda.memory._set_allocator_settings(value)
        torch.cuda.memory._set_allocator_settings("max_split_size_mb:100000")

    def test_keys_are_those_of_the_installed_torch(self):
        header = Path(torch.__file__).parent / "include/c10/cuda/CUDAAllocatorConfig.h"
        listed = header.read_text().partition("keys{")[2].partition("};")[0]
        listed = re.sub(r"//.*", "", listed)
        keys = ["".join(re.findall(r'"(\w+)"', one)) for one in listed.split(",")]
        self.assertGreater(len(keys), 5)
        known = ",".join(GOOD_SETTINGS) + ",per_process_memory_fraction:"
        self.assertEqual([key for key in keys if f"{key}:" not in known], [])

    def test_fraction_limits_each_device_from_its_first_use(self):
        program = """
        import torch
        x = torch.ones(1, device="cuda")
        total = torch.cuda.get_device_properties(0).total_memory
        print(torch.cuda.get_per_process_memory_fraction())
        try:
            torch.empty(total // 2, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            print("out of memory")
        torch.cuda.memory._set_allocator_settings("per_process_memory_fraction:0.75")
        y = torch.ones(1, device="cuda:1")
        print(*(torch.cuda.get_per_process_memory_fraction(i) for i in (0, 1)))
        """
        output = run_program(
            program, {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.25"}
        ).stdout
        self.assertEqual(output.splitlines(), ["0.25", "out of memory", "0.25 0.75"])

    @unittest.skipIf(BUILD_HAS_CUDA, "torch itself has these keys")
    def test_they_are_keys_of_cuda_only(self):
        settings = {"OPENREG_DEVICE_TYPE": "openreg", "PYTORCH_ALLOC_CONF": "backend:native"}
        run = run_program("import torch; torch.ones(1).openreg()", settings, False)
        self.assertIn("Unrecognized key 'backend'", run.stderr)


instantiate_parametrized_tests(TestSettings)

if __name__ == "__main__":
    run_tests()
