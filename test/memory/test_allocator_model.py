"""The caching allocator against a model (allocator_model.py): long random programs, with addresses
and books checked on the way; reuse in stream order; running out of memory.
"""

import gc
import json
import random
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
    subtest,
)
from memory.allocator_model import KIB, MIB, ROUNDING, SMALL_SIZE, Model

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.053)

LAST = DEVICE_COUNT - 1


def allocate(size, device=DEVICE_TYPE):
    return torch.empty(size, dtype=torch.uint8, device=device)


def some_size(rng):
    """A size: mostly small, sometimes around a border between the pools, seldom large."""
    kind = rng.random()
    if kind < 0.6:
        return rng.randint(1, 16 * KIB)
    if kind < 0.8:
        return rng.randint(1, 2 * MIB)
    if kind < 0.95:
        border = rng.choice([ROUNDING, SMALL_SIZE, 2 * MIB, 10 * MIB])
        return border + rng.randint(-2, 2)
    return rng.randint(1, 24 * MIB)


def settle():
    """Lets nothing be left that could still be freed."""
    gc.collect()
    torch.accelerator.synchronize()
    torch.openreg.empty_cache()


class Program:
    """A random program on new streams, compared with a model step by step."""

    def __init__(self, case, seed, device, stream_count, names_streams=True, **rules):
        settle()
        self.names_streams = names_streams
        self.case = case
        self.rng = random.Random(seed)
        self.device = device
        self.handles = [_C._create_external_stream(0, device) for _ in range(stream_count)]
        self.streams = [torch.openreg.ExternalStream(h, device) for h in self.handles]
        self.model = Model(**rules)
        self.tensors = []

    def close(self):
        for handle in self.handles:
            _C._destroy_external_stream(handle)

    def run(self, steps, most=60):
        """Allocates and frees; `most` is about how many tensors live at a time."""
        for _ in range(steps):
            if self.rng.random() < (0.55 if len(self.tensors) < most else 0.4) or not self.tensors:
                self.allocate()
            else:
                self.free()

    def allocate(self):
        size, stream = some_size(self.rng), self.rng.choice(self.streams)
        with stream:
            x = allocate(size, f"{DEVICE_TYPE}:{self.device}")
        self.model.allocate(size, stream.stream_id, x.data_ptr())
        self.tensors.append(x)

    def free(self):
        # The last reference is the list's, so the memory is freed where the list drops it.
        place = self.rng.randrange(len(self.tensors))
        address = self.tensors[place].data_ptr()
        named = []
        if self.names_streams and self.rng.random() < 0.2 and not self.model.awaiting:
            named = self.rng.sample(self.streams, 2)
        for stream in named:
            self.tensors[place].record_stream(stream)
            self.model.record_stream(address, stream.stream_id)
        del self.tensors[place]
        for stream in named:
            stream.synchronize()
        self.model.free(address)

    def layout(self):
        """The allocator's blocks of the program's streams, as Model.layout()."""
        mine = {stream.stream_id for stream in self.streams}
        return sorted(
            (
                segment["stream"],
                f"{segment['segment_type']}_pool",
                [
                    (block["address"], block["size"], block["requested_size"], block["state"])
                    for block in segment["blocks"]
                ],
            )
            for segment in torch.openreg.memory_snapshot()
            if segment["device"] == self.device and segment["stream"] in mine
        )


class Books:
    """The statistics of a device, from their state when this was made."""

    def __init__(self, device):
        self.device = device
        torch.openreg.reset_peak_memory_stats(device)
        torch.openreg.reset_accumulated_memory_stats(device)
        self.start = torch.openreg.memory_stats(device)

    def change(self):
        """How far each statistic has moved; a peak, from the value it began with."""
        now = torch.openreg.memory_stats(self.device)
        return {
            name: value - self.start[name.replace(".peak", ".current")]
            for name, value in now.items()
            if isinstance(value, int) and name in self.start
        }

    def check(self, case, models, with_peaks=True):
        """Compares all statistics with the sums of the models'."""
        change = self.change()
        expected = {}
        for model in models:
            for name, value in model.flat_stats().items():
                expected[name] = expected.get(name, 0) + value
        for name, value in expected.items():
            if with_peaks or not name.endswith("peak"):
                case.assertEqual(change[name], value, msg=name)
        for name in ("num_ooms", "num_alloc_retries"):
            case.assertEqual(change[name], 0, msg=name)
        case.assertTrue(_C._is_allocator_valid(self.device))


class TestModel(OpenRegTestCase):
    @parametrize("seed", range(3))
    def test_addresses_and_all_statistics_follow_a_model(self, seed):
        device = seed % DEVICE_COUNT
        program = Program(self, seed, device, stream_count=3)
        books = Books(device)
        steps = 0
        while steps < 34_000:  # three seeds, so 100,000 in all
            program.run(500)
            steps += 500
            books.check(self, [program.model])
            self.assertEqual(program.layout(), program.model.layout())
            if steps % 2_000 == 0:
                torch.openreg.empty_cache()
                program.model.empty_cache()
        while program.tensors:
            program.free()
        books.check(self, [program.model])
        torch.openreg.empty_cache()
        program.model.empty_cache()
        books.check(self, [program.model])
        self.assertEqual(program.layout(), [])
        program.close()

    def test_statistics_are_the_sum_of_what_threads_do(self):
        # Any thread's allocation frees the blocks whose streams have passed; so no stream is named.
        programs = [
            Program(self, seed, LAST, stream_count=2, names_streams=False) for seed in range(4)
        ]
        books = Books(LAST)
        for _ in range(5):
            failures = []

            def run(program, failures=failures):
                try:
                    program.run(1_000, most=30)
                except BaseException as error:
                    failures.append(error)
                    raise

            threads = [threading.Thread(target=run, args=(program,)) for program in programs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])
            books.check(self, [program.model for program in programs], with_peaks=False)
            for program in programs:
                self.assertEqual(program.layout(), program.model.layout())
        for program in programs:
            program.tensors.clear()
            program.close()

    @parametrize(
        "settings,rules",
        [
            subtest(
                (
                    "max_split_size_mb:20,max_non_split_rounding_mb:22",
                    {"max_split_size": 20 * MIB, "max_non_split_rounding": 22 * MIB},
                ),
                name="max_split_size",
            ),
            subtest(("roundup_power2_divisions:4", {"divisions": 4}), name="roundup"),
        ],
    )
    def test_settings_change_the_model_as_documented(self, settings, rules):
        run_program(
            f"""
            import sys, unittest
            sys.path[:0] = [{str(Path(__file__).parents[1])!r}]
            import torch
            from memory.test_allocator_model import Books, Program
            case = unittest.TestCase()
            torch.empty(1, device="openreg")
            program = Program(case, 11, 0, stream_count=2, **{rules!r})
            books = Books(0)
            for _ in range(20):
                program.run(250)
                books.check(case, [program.model])
                case.assertEqual(program.layout(), program.model.layout())
            assert (program.model.oversize["oversize_segments"].allocated > 0) == (
                "max_split_size" in {rules!r})
            """,
            {"PYTORCH_ALLOC_CONF": settings},
        )

    def test_contents_survive_what_happens_around_them(self):
        rng = random.Random(3)
        tensors = []
        for step in range(3_000):
            if rng.random() < 0.5 or not tensors:
                x = torch.empty(rng.randint(1, 3000), dtype=torch.int64, device=DEVICE_TYPE)
                tensors.append((x.fill_(step), step))
            else:
                x, value = tensors.pop(rng.randrange(len(tensors)))
                if rng.random() < 0.3:
                    self.assertEqual((x[0].item(), x[-1].item()), (value, value))
            del x
        for x, value in tensors:
            self.assertTrue(torch.equal(x.cpu(), torch.full(x.shape, value)))

    def test_threads_may_allocate_and_free_at_the_same_time(self):
        gc.collect()
        before = torch.openreg.memory_allocated()
        problems = []

        def run(seed):
            rng = random.Random(seed)
            tensors = []
            try:
                for step in range(1_000):
                    if rng.random() < 0.5 or not tensors:
                        x = torch.empty(rng.randint(1, 2000), dtype=torch.int64, device=DEVICE_TYPE)
                        tensors.append((x.fill_(seed), seed))
                    else:
                        x, value = tensors.pop(rng.randrange(len(tensors)))
                        if rng.random() < 0.1 and x[0].item() != value:
                            problems.append(f"thread {seed}: other contents at step {step}")
                    del x
                    if step % 100 == 0 and not _C._is_allocator_valid(0):
                        problems.append(f"thread {seed}: invalid at step {step}")
            except Exception as error:
                problems.append(repr(error))

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])
        self.assertEqual(torch.openreg.memory_allocated(), before)

    @requires_two_devices
    def test_devices_do_not_share_memory(self):
        programs = [Program(self, 5 + device, device, stream_count=2) for device in range(2)]
        books = [Books(device) for device in range(2)]
        for _ in range(20):
            for program in programs:
                program.run(30)
        for program, book in zip(programs, books, strict=True):
            book.check(self, [program.model])
            program.tensors.clear()
            program.close()


class TestProfiler(OpenRegTestCase):
    def test_profiler_sees_the_total_after_each_allocation_and_free(self):
        x = allocate(KIB)
        before = torch.openreg.memory_allocated()
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            y = allocate(4 * KIB)
            del y
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        device_type = torch.openreg.current_stream().device_type
        seen = [
            (event["args"]["Bytes"], event["args"]["Total Allocated"] - before)
            for event in sorted(events, key=lambda event: event.get("ts", 0))
            if event.get("name") == "[memory]" and event["args"]["Device Type"] == device_type
        ]
        self.assertEqual(seen, [(4 * KIB, 4 * KIB), (-4 * KIB, 0)])
        del x


class TestReuseInStreamOrder(OpenRegTestCase):
    # A unique size, so that no other test's cached block fits.
    SIZE = 43 * MIB

    def setUp(self):
        super().setUp()
        torch.openreg.synchronize()
        torch.openreg.empty_cache()

    def test_memory_may_be_freed_while_work_on_it_is_queued(self):
        x = torch.full((1000,), 3.0, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        results = []
        with StreamGate():
            for i in range(50):
                y = x + i
                results.append(y * 2)
                del y
            del x
        for i, result in enumerate(results):
            self.assertEqual(result[0].item(), (3.0 + i) * 2)

    def test_recorded_memory_waits_for_every_stream_that_was_named(self):
        sides = [torch.openreg.Stream() for _ in range(2)]
        x = allocate(self.SIZE)
        address = x.data_ptr()
        with StreamGate(sides[0]), StreamGate(sides[1]) as second:
            for side in sides:
                x.record_stream(side)
            del x
            second.open()
            sides[1].synchronize()
            y = allocate(self.SIZE)
            self.assertNotEqual(y.data_ptr(), address)
        sides[0].synchronize()
        self.assertEqual(allocate(self.SIZE).data_ptr(), address)

    def test_recorded_memory_waits_for_work_up_to_the_free_and_no_later_work(self):
        side = torch.openreg.Stream()
        x = allocate(self.SIZE)
        address = x.data_ptr()
        x.record_stream(side)
        del x
        side.synchronize()
        with StreamGate(side):
            self.assertEqual(allocate(self.SIZE).data_ptr(), address)

    def test_recorded_memory_counts_as_active_until_the_stream_has_passed(self):
        side = torch.openreg.Stream()
        start = torch.openreg.memory_stats()
        x = allocate(self.SIZE)
        with StreamGate(side):
            x.record_stream(side)
            del x
            now = torch.openreg.memory_stats()
            self.assertEqual(now["allocation.all.current"], start["allocation.all.current"])
            self.assertEqual(now["active.all.current"], start["active.all.current"] + 1)
        side.synchronize()
        torch.openreg.empty_cache()
        now = torch.openreg.memory_stats()
        self.assertEqual(now["active.all.current"], start["active.all.current"])
        self.assertEqual(now["reserved_bytes.all.current"], start["reserved_bytes.all.current"])

    def test_view_records_its_whole_storage(self):
        side = torch.openreg.Stream()
        x = allocate(self.SIZE)
        address = x.data_ptr()
        with StreamGate(side):
            x[100:200].record_stream(side)
            del x
            y = allocate(self.SIZE)
            self.assertNotEqual(y.data_ptr(), address)

    def test_record_of_an_empty_tensor_does_nothing(self):
        torch.empty(0, device=DEVICE_TYPE).record_stream(torch.openreg.Stream())

    def test_cached_memory_of_a_stream_stays_with_it(self):
        side = torch.openreg.Stream()
        with side:
            x = allocate(self.SIZE)
            address = x.data_ptr()
            del x
        y = allocate(self.SIZE)
        self.assertNotEqual(y.data_ptr(), address)
        with side:
            self.assertEqual(allocate(self.SIZE).data_ptr(), address)


# A device that 64 MiB fill.
SMALL_DEVICE = {"OPENREG_DEVICE_MEMORY": "64MiB"}
PREAMBLE = """
import torch
from common import StreamGate
from torch_openreg import _C

MIB = 1024 * 1024
allocate = lambda size: torch.empty(size, dtype=torch.uint8, device="openreg")

def out_of_memory(call):
    try:
        call()
    except torch.OutOfMemoryError as error:
        return str(error)
    raise AssertionError("expected torch.OutOfMemoryError")
"""


def run_on_a_small_device(code):
    lines = [line[12:] for line in code.splitlines()]
    return run_program(PREAMBLE + "\n".join(lines), SMALL_DEVICE)


class TestOutOfMemory(OpenRegTestCase):
    def test_text_names_the_sizes(self):
        run_on_a_small_device(
            """
            x = allocate(20 * MIB)
            y = allocate(20 * MIB)
            del y
            text = out_of_memory(lambda: allocate(50 * MIB))
            for part in ("Tried to allocate 50.00 MiB", "0 has a total capacity of 64.00 MiB",
                         "44.00 MiB is free", "20.00 MiB is allocated", "OPENREG_DEVICE_MEMORY"):
                assert part in text, (part, text)
            """
        )

    def test_program_goes_on(self):
        run_on_a_small_device(
            """
            x = torch.ones(10 * MIB // 4, device="openreg")
            for _ in range(3):
                out_of_memory(lambda: allocate(100 * MIB))
            assert x.sum().item() == 10 * MIB // 4
            y = allocate(30 * MIB).fill_(1)
            assert y[-1].item() == 1
            assert _C._is_allocator_valid(0)
            assert torch.openreg.memory_stats()["num_ooms"] == 3
            """
        )

    def test_operator_that_runs_out_of_memory_leaves_its_arguments(self):
        run_on_a_small_device(
            """
            x = torch.ones(30 * MIB // 4, device="openreg")
            y = torch.ones(30 * MIB // 4, device="openreg")
            out_of_memory(lambda: x + y)
            assert x[0].item() == y[-1].item() == 1
            del y
            assert (x + x)[-1].item() == 2
            """
        )

    def test_error_is_a_runtime_error_and_comes_from_the_call(self):
        run_on_a_small_device(
            """
            assert issubclass(torch.OutOfMemoryError, RuntimeError)
            with StreamGate():
                out_of_memory(lambda: torch.empty(65 * MIB, dtype=torch.uint8, device="openreg"))
            """
        )

    def test_cached_memory_is_given_back_before_the_error(self):
        run_on_a_small_device(
            """
            tensors = [allocate(15 * MIB) for _ in range(4)]
            del tensors
            assert torch.openreg.memory_reserved() >= 60 * MIB
            x = allocate(60 * MIB)
            assert torch.openreg.memory_stats()["num_alloc_retries"] == 1
            assert torch.openreg.memory_stats()["num_ooms"] == 0
            """
        )

    def test_cached_memory_of_other_streams_is_given_back_before_the_error(self):
        run_on_a_small_device(
            """
            with torch.openreg.Stream():
                x = allocate(50 * MIB).fill_(1)
                del x
            x = allocate(50 * MIB)
            """
        )

    def test_memory_that_other_streams_have_passed_is_reused_before_the_error(self):
        run_on_a_small_device(
            """
            side = torch.openreg.Stream()
            x = allocate(50 * MIB)
            with StreamGate(side) as gate:
                x.record_stream(side)
                del x
                gate.open()
                y = allocate(50 * MIB)
            """
        )

    def test_memory_that_becomes_free_by_the_wait_is_used_where_it_is(self):
        # Each segment of 20 MiB holds two blocks of 8 MiB. No segment can be given back, so the
        # request must be served by the block that the side stream has released.
        run_on_a_small_device(
            """
            side = torch.openreg.Stream()
            tensors = [allocate(8 * MIB) for _ in range(6)]
            assert torch.openreg.memory_reserved() == 60 * MIB
            with side:
                x = torch.full((256, 256), 0.5)
                x = x.to("openreg")
                for _ in range(300):  # long enough to be still at work below
                    x = x @ x
            tensors[0].record_stream(side)
            del tensors[0]
            y = allocate(8 * MIB)
            side.synchronize()
            """
        )

    def test_capacity_is_that_of_each_device(self):
        run_on_a_small_device(
            """
            x = allocate(60 * MIB)
            if torch.openreg.device_count() > 1:
                y = torch.empty(60 * MIB, dtype=torch.uint8, device="openreg:1")
            out_of_memory(lambda: allocate(10 * MIB))
            assert torch.openreg.mem_get_info() == (4 * MIB, 64 * MIB)
            """
        )


instantiate_parametrized_tests(TestModel)

if __name__ == "__main__":
    run_tests()
