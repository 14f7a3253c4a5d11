"""The caching allocator against a model: long random programs, with the books checked on the way;
reuse in stream order; running out of memory.
"""

import bisect
import gc
import json
import random
import tempfile
import threading
from pathlib import Path

import torch
from common import (
    DEVICE_COUNT,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
)

from torch_openreg import _C

LAST = DEVICE_COUNT - 1
KIB, MIB = 1024, 1024 * 1024
ROUNDING = 512
SMALL_SIZE = MIB  # requests up to it come from the small pool
SMALL_SEGMENT = 2 * MIB
POOLS = ("all", "small_pool", "large_pool")
QUANTITIES = (
    "allocation",
    "allocated_bytes",
    "requested_bytes",
    "active",
    "active_bytes",
    "segment",
    "reserved_bytes",
    "inactive_split",
    "inactive_split_bytes",
)


def allocate(size, device="openreg"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def rounded(size):
    return -(-size // ROUNDING) * ROUNDING


class Model:
    """What the statistics have to say about the tensors that a program holds.

    Counts from the state at its beginning, as other tests may have left something behind.
    """

    def __init__(self, case, device):
        self.case = case
        self.device = device
        self.sizes = {}  # requested bytes by address
        self.addresses = []  # sorted
        gc.collect()
        torch.openreg.synchronize(device)
        torch.openreg.empty_cache()
        self.start = torch.openreg.memory_stats(device)

    def add(self, x):
        """Notes a new tensor; its memory must not overlap that of another one."""
        address, size = x.data_ptr(), x.nbytes
        self.case.assertEqual(address % ROUNDING, 0)
        position = bisect.bisect(self.addresses, address)
        if position > 0:
            before = self.addresses[position - 1]
            self.case.assertLessEqual(before + self.sizes[before], address)
        if position < len(self.addresses):
            self.case.assertLessEqual(address + size, self.addresses[position])
        self.addresses.insert(position, address)
        self.sizes[address] = size

    def remove(self, x):
        address = x.data_ptr()
        del self.sizes[address]
        del self.addresses[bisect.bisect_left(self.addresses, address)]

    def check(self, is_settled=True):
        """Compares the statistics with the model.

        Args:
            is_settled: whether no freed memory waits for another stream.
        """
        now = torch.openreg.memory_stats(self.device)
        for pool in POOLS:
            sizes = [
                size
                for size in self.sizes.values()
                if pool == "all" or (pool == "small_pool") == (rounded(size) <= SMALL_SIZE)
            ]
            self._check_pool(pool, sizes, now, is_settled)
        for quantity in QUANTITIES:
            self._check_sums(quantity, now)
        self.case.assertTrue(_C._is_allocator_valid(self.device))

    def _check_pool(self, pool, sizes, now, is_settled):
        change = {
            quantity: now[f"{quantity}.{pool}.current"] - self.start[f"{quantity}.{pool}.current"]
            for quantity in QUANTITIES
        }
        equal, less_equal = self.case.assertEqual, self.case.assertLessEqual
        least = sum(map(rounded, sizes))
        equal(change["allocation"], len(sizes))
        equal(change["requested_bytes"], sum(sizes))
        less_equal(least, change["allocated_bytes"])
        if pool == "small_pool":
            equal(change["allocated_bytes"], least)
            equal(change["reserved_bytes"], change["segment"] * SMALL_SEGMENT)
        else:
            # A rest of up to SMALL_SIZE is not worth a block of its own.
            less_equal(change["allocated_bytes"], least + len(sizes) * SMALL_SIZE)
        if is_settled:
            equal(change["active"], change["allocation"])
            equal(change["active_bytes"], change["allocated_bytes"])
        else:
            less_equal(change["allocation"], change["active"])
            less_equal(change["allocated_bytes"], change["active_bytes"])
        less_equal(
            change["active_bytes"] + change["inactive_split_bytes"], change["reserved_bytes"]
        )
        equal(change["inactive_split"] == 0, change["inactive_split_bytes"] == 0)

    def _check_sums(self, quantity, now):
        for pool in POOLS:
            name = f"{quantity}.{pool}"
            grown = now[f"{name}.allocated"] - now[f"{name}.freed"]
            self.case.assertEqual(now[f"{name}.current"], grown, msg=name)
            self.case.assertLessEqual(now[f"{name}.current"], now[f"{name}.peak"], msg=name)
        self.case.assertEqual(
            now[f"{quantity}.all.current"],
            now[f"{quantity}.small_pool.current"] + now[f"{quantity}.large_pool.current"],
        )


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


class TestModel(OpenRegTestCase):
    @parametrize("seed", range(3))
    def test_statistics_follow_a_random_program(self, seed):
        rng = random.Random(seed)
        model = Model(self, device=0)
        tensors = []
        for step in range(10_000):
            if rng.random() < (0.55 if len(tensors) < 100 else 0.4) or not tensors:
                x = allocate(some_size(rng))
                model.add(x)
                tensors.append(x)
            else:
                x = tensors.pop(rng.randrange(len(tensors)))
                model.remove(x)
            del x
            if rng.random() < 0.002:
                torch.openreg.empty_cache()
            if step % 250 == 0:
                model.check()
        model.check()
        while tensors:
            model.remove(tensors.pop())
        model.check()

    def test_statistics_follow_a_random_program_on_several_streams(self):
        rng = random.Random(7)
        model = Model(self, device=LAST)
        streams = [torch.openreg.Stream(LAST) for _ in range(3)]
        streams.append(torch.openreg.default_stream(LAST))
        tensors = []
        for step in range(5_000):
            if rng.random() < (0.6 if len(tensors) < 60 else 0.4) or not tensors:
                with rng.choice(streams):
                    x = allocate(some_size(rng), f"openreg:{LAST}")
                model.add(x)
                tensors.append(x)
            else:
                x = tensors.pop(rng.randrange(len(tensors)))
                for _ in range(rng.randint(0, 2)):
                    x.record_stream(rng.choice(streams))
                model.remove(x)
            del x
            if step % 250 == 0:
                model.check(is_settled=False)
        tensors.clear()
        torch.openreg.synchronize(LAST)
        torch.openreg.empty_cache()  # waits for what record_stream has named
        model.sizes.clear()
        model.check()
        now = torch.openreg.memory_stats(LAST)
        self.assertEqual(
            now["reserved_bytes.all.current"], model.start["reserved_bytes.all.current"]
        )

    def test_contents_survive_what_happens_around_them(self):
        rng = random.Random(3)
        tensors = []
        for step in range(3_000):
            if rng.random() < 0.5 or not tensors:
                x = torch.empty(rng.randint(1, 3000), dtype=torch.int64, device="openreg")
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
                        x = torch.empty(rng.randint(1, 2000), dtype=torch.int64, device="openreg")
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
        models = [Model(self, device) for device in range(2)]
        rng = random.Random(5)
        tensors = []
        for _ in range(500):
            device = rng.randrange(2)
            x = allocate(some_size(rng), f"openreg:{device}")
            models[device].add(x)
            tensors.append(x)
            if len(tensors) > 60:
                x = tensors.pop(rng.randrange(len(tensors)))
                models[x.device.index].remove(x)
            del x
        for model in models:
            model.check()


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
    # A size of its own, so that no other test's cached block fits.
    SIZE = 43 * MIB

    def setUp(self):
        super().setUp()
        torch.openreg.synchronize()
        torch.openreg.empty_cache()

    def test_memory_may_be_freed_while_work_on_it_is_queued(self):
        x = torch.full((1000,), 3.0, device="openreg")
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
        torch.empty(0, device="openreg").record_stream(torch.openreg.Stream())

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
            for part in ("Tried to allocate 50.00 MiB", "Device 0", "capacity of 64.00 MiB",
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
