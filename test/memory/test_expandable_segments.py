"""Segments that grow: the setting expandable_segments of torch's allocators.

The expected figures follow from the rules of docs/memory.md: a segment for each stream and class,
pages of 2 MiB for small blocks and of 20 MiB for large ones.
"""

import gc
import random

import pytest
import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
)

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.3)

memory = torch.openreg.memory
KIB, MIB = 1024, 1024 * 1024
PAGE = 20 * MIB


def allocate(size):
    return torch.empty(size, dtype=torch.uint8, device=DEVICE_TYPE)


def set_expandable(is_on):
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{is_on}")


def statistic(name):
    return memory.memory_stats().get(f"{name}.all.current", 0)


class ExpandableTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        gc.collect()
        torch.accelerator.synchronize()
        memory.empty_cache()
        self.reserved_before = statistic("reserved_bytes")
        set_expandable(True)

    def tearDown(self):
        set_expandable(False)
        gc.collect()
        memory.empty_cache()
        self.assertTrue(_C._is_allocator_valid(0))
        self.assertEqual(statistic("reserved_bytes"), self.reserved_before)
        super().tearDown()

    def reserved(self):
        return statistic("reserved_bytes") - self.reserved_before

    def segment_of(self, tensor):
        """The described segment that has the tensor."""
        address = tensor.data_ptr()
        (found,) = [
            one
            for one in memory.memory_snapshot()
            if one["address"] <= address < one["address"] + one["total_size"]
        ]
        return found


# The sizes of tensors that are allocated, in MiB; a negative number frees that tensor, -1 the
# first. After each step: the MiB that are reserved.
PROGRAMS = {
    "one_page": ([5, 5, 5, 5], [20, 20, 20, 20]),
    "over_pages": ([30, 5, 5, 1.5], [40, 40, 40, 60]),
    "growing": ([21, -1, 41, -2, 61, -3, 81], [40, 40, 60, 60, 80, 80, 100]),
    "tail_is_used": ([30, 5, -1, 33], [40, 40, 40, 80]),
    "best_fit": ([30, 5, 10, 5, -1, -3, 9], [40, 40, 60, 60, 60, 60, 60]),
    "shrinking": ([100, -1, 60, 30, 10], [100, 100, 100, 100, 100]),
    "small": ([0.75, 0.75, 0.75, 0.5], [2, 2, 4, 4]),
    "small_and_large": ([1, 1, 1, 2], [2, 2, 4, 24]),
}


class TestGrowth(ExpandableTestCase):
    @parametrize("name", list(PROGRAMS))
    def test_reserved_memory_is_whole_pages(self, name):
        steps, expected = PROGRAMS[name]
        tensors, found = [], []
        for step in steps:
            if step > 0:
                tensors.append(allocate(int(step * MIB)))
            else:
                tensors[-step - 1] = None
            found.append(self.reserved() / MIB)
        self.assertEqual(found, expected)

    def test_growing_sizes_take_more_without_the_setting(self):
        set_expandable(False)
        found = []
        for size in [21, 41, 61]:
            x = allocate(size * MIB)
            found.append(self.reserved() // MIB)
            del x
        self.assertEqual(found, [22, 22 + 42, 22 + 42 + 62])

    def test_large_blocks_have_one_segment(self):
        x = allocate(30 * MIB)
        y = allocate(25 * MIB)
        segment = self.segment_of(x)
        self.assertEqual(segment, self.segment_of(y))
        self.assertTrue(segment["is_expandable"])
        self.assertEqual(segment["total_size"], 3 * PAGE)
        self.assertEqual(y.data_ptr(), x.data_ptr() + 30 * MIB)
        self.assertEqual(statistic("allocated_bytes"), 55 * MIB)

    def test_size_of_pages_is_a_setting(self):
        torch._C._accelerator_setAllocatorSettings(
            "expandable_segments:True,large_segment_size_mb:32"
        )
        try:
            x = allocate(40 * MIB)
            self.assertEqual(self.reserved(), 64 * MIB)
            del x
        finally:
            torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")

    def test_segments_and_inactive_splits_are_not_counted(self):
        before = {name: statistic(name) for name in ("segment", "inactive_split_bytes")}
        x = allocate(30 * MIB)
        y = allocate(30 * MIB)
        del x
        self.assertEqual({name: statistic(name) for name in before}, before)
        del y

    def test_contents_stay_while_the_segment_grows_and_shrinks(self):
        tensors = [allocate(PAGE).fill_(i) for i in range(4)]
        del tensors[1]
        memory.empty_cache()
        tensors.append(allocate(50 * MIB).fill_(4))
        tensors.append(allocate(PAGE).fill_(5))
        for i, tensor in zip([0, 2, 3, 4, 5], tensors, strict=True):
            self.assertTrue((tensor == i).all().item())

    def test_new_pages_read_as_zeros(self):
        x = allocate(2 * PAGE).fill_(1)
        kept = allocate(1 * MIB + 1)
        del x
        memory.empty_cache()
        self.assertEqual(self.reserved(), PAGE)
        self.assertEqual(allocate(2 * PAGE).count_nonzero().item(), 0)
        del kept

    def test_each_stream_has_its_segments(self):
        x = allocate(5 * MIB)
        side = torch.openreg.Stream()
        with side:
            y = allocate(5 * MIB)
        self.assertEqual(self.reserved(), 2 * PAGE)
        self.assertEqual(self.segment_of(x)["stream"], 0)
        self.assertEqual(self.segment_of(y)["stream"], side.stream_id)
        del x
        z = allocate(30 * MIB)
        self.assertEqual(self.reserved(), 3 * PAGE)
        self.assertEqual(self.segment_of(z)["stream"], 0)

    def test_history_has_what_is_mapped(self):
        memory._record_memory_history()
        try:
            x = allocate(30 * MIB)
            y = allocate(30 * MIB)
            del x, y
            memory.empty_cache()
            snapshot = memory._snapshot()
        finally:
            memory._record_memory_history(enabled=None)
        entries = [
            (entry["action"], entry["size"] // MIB)
            for entry in snapshot["device_traces"][0]
            if entry["action"].startswith("segment")
        ]
        self.assertEqual(entries, [("segment_map", 40), ("segment_map", 20), ("segment_unmap", 60)])
        self.assertTrue(snapshot["allocator_settings"]["expandable_segments"])


class TestRelease(ExpandableTestCase):
    def test_free_pages_in_the_middle_are_released_and_filled(self):
        a, b, c = (allocate(PAGE) for _ in range(3))
        address = b.data_ptr()
        del b
        memory.empty_cache()
        self.assertEqual(self.reserved(), 2 * PAGE)
        segments = [self.segment_of(x) for x in (a, c)]
        self.assertEqual([one["total_size"] for one in segments], [PAGE, PAGE])
        self.assertEqual([one["is_expandable"] for one in segments], [True, True])
        d = allocate(30 * MIB)  # has no room in the gap
        self.assertEqual(d.data_ptr(), c.data_ptr() + PAGE)
        self.assertEqual(self.reserved(), 4 * PAGE)
        e = allocate(PAGE)
        self.assertEqual(e.data_ptr(), address)
        self.assertEqual(self.reserved(), 5 * PAGE)

    def test_pages_with_a_part_in_use_stay(self):
        a, b, c = allocate(10 * MIB), allocate(25 * MIB), allocate(25 * MIB)
        del b
        memory.empty_cache()
        self.assertEqual(self.reserved(), 3 * PAGE)
        del a
        memory.empty_cache()
        self.assertEqual(self.reserved(), 2 * PAGE)
        del c

    def test_memory_of_the_device_comes_back(self):
        free = torch.accelerator.get_memory_info()[0]
        x = allocate(30 * MIB)
        self.assertEqual(torch.accelerator.get_memory_info()[0], free - 2 * PAGE)
        del x
        memory.empty_cache()
        self.assertEqual(torch.accelerator.get_memory_info()[0], free)

    def test_memory_waits_for_other_streams(self):
        x = allocate(PAGE)
        side = torch.openreg.Stream()
        x.record_stream(side)
        del x
        memory.empty_cache()  # waits
        self.assertEqual(self.reserved(), 0)

    def test_graphs_have_their_own(self):
        graph = torch.openreg.Graph()
        x = torch.ones(5 * MIB, device=DEVICE_TYPE)
        with torch.openreg.graph(graph):
            y = x * 2
            z = y + 1
        pool = graph.pool()
        segment = self.segment_of(z)
        self.assertTrue(segment["is_expandable"])
        self.assertEqual(segment["segment_pool_id"], pool)
        self.assertEqual(segment["total_size"], 2 * PAGE)
        memory.empty_cache()
        graph.replay()
        self.assertEqual(z.sum().item(), 15 * MIB)
        del y, z, graph
        gc.collect()
        memory.empty_cache()
        self.assertEqual(self.reserved(), PAGE)


class TestSetting(ExpandableTestCase):
    def test_blocks_of_expandable_segments_serve_only_with_the_setting(self):
        x = allocate(30 * MIB)
        address = x.data_ptr()
        del x
        set_expandable(False)
        x = allocate(30 * MIB)
        self.assertFalse(self.segment_of(x)["is_expandable"])
        self.assertEqual(self.reserved(), 2 * PAGE + 30 * MIB)
        set_expandable(True)
        y = allocate(30 * MIB)
        self.assertEqual(y.data_ptr(), address)

    def test_environment_turns_it_on(self):
        code = f"""
        import torch
        x = torch.empty(30 << 20, dtype=torch.uint8, device="{DEVICE_TYPE}")
        (segment,) = torch.openreg.memory.memory_snapshot()
        print(segment["is_expandable"], segment["total_size"] >> 20)
        """
        for variable in ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]:
            if variable == "PYTORCH_CUDA_ALLOC_CONF" and DEVICE_TYPE != "cuda":
                continue
            found = run_program(code, {variable: "expandable_segments:True"}).stdout
            self.assertEqual(found.split(), ["True", "40"])

    def test_without_addresses_segments_are_ordinary(self):
        code = f"""
        import resource
        import torch
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limit = used + (8 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        x = torch.empty(30 << 20, dtype=torch.uint8, device="{DEVICE_TYPE}")
        (segment,) = torch.openreg.memory.memory_snapshot()
        print(segment["is_expandable"], segment["total_size"] >> 20)
        """
        settings = {
            "PYTORCH_ALLOC_CONF": "expandable_segments:True",
            "OPENREG_DEVICE_MEMORY": "1GiB",
        }
        self.assertEqual(run_program(code, settings).stdout.split(), ["False", "30"])


# Of a device of 256 MiB. First, 40 MiB in the middle of what has been 120 are in use.
FRAGMENTED = f"""
import torch
from torch_openreg import _C

MIB = 1 << 20

def allocate(size):
    return torch.empty(size * MIB, dtype=torch.uint8, device="{DEVICE_TYPE}")

def reserved():
    return torch.accelerator.memory_reserved() // MIB

def tries(size):
    try:
        return allocate(size)
    except torch.OutOfMemoryError as error:
        assert f"Tried to allocate {{size}}.00 MiB" in str(error), error
        return None

x = allocate(120)
del x
a, b, c = allocate(40), allocate(40), allocate(40)
del a, c
"""


class TestShortage(OpenRegTestCase):
    def run_fragmented(self, code, is_on):
        settings = {
            "OPENREG_DEVICE_MEMORY": "256MiB",
            "PYTORCH_ALLOC_CONF": f"expandable_segments:{is_on}",
        }
        code = FRAGMENTED + code + "\nassert _C._is_allocator_valid(0)\n"
        return run_program(code, settings).stdout.split()

    @parametrize("is_on, expected", [(True, ["True", "220"]), (False, ["False", "120"])])
    def test_free_pages_serve_a_large_request(self, is_on, expected):
        code = "y = tries(180); print(y is not None, reserved())"
        self.assertEqual(self.run_fragmented(code, is_on), expected)

    def test_request_that_has_no_room_leaves_what_is_in_use(self):
        # The result of min() takes a page of small blocks.
        code = """
b.fill_(3)
print(tries(230), reserved(), b.min().item())
y = allocate(200)
print(reserved(), torch.accelerator.get_memory_info()[0] // MIB)
"""
        self.assertEqual(self.run_fragmented(code, True), ["None", "40", "3", "242", "14"])

    def test_limit_of_the_process_holds(self):
        code = """
del b
torch.accelerator.empty_cache()
torch.openreg.memory.set_per_process_memory_fraction(0.5)
kept = allocate(100)
print(tries(30), reserved(), tries(28) is not None)
"""
        self.assertEqual(self.run_fragmented(code, True), ["None", "100", "True"])


class Model:
    """One stream's large blocks, plainly: a list of (start, end, owner) in address order.

    The owner is None for free memory, and "" for addresses without memory.
    """

    def __init__(self, end):
        self.blocks = [(0, end, "")]

    def merge(self):
        merged = []
        for start, end, owner in self.blocks:
            if merged and owner in (None, "") and merged[-1][2] == owner:
                merged[-1] = (merged[-1][0], end, owner)
            else:
                merged.append((start, end, owner))
        self.blocks = merged

    def put(self, start, end, owner):
        """Changes the owner of a range."""
        after = []
        for a, b, was in self.blocks:
            parts = [(a, min(b, start)), (max(a, start), min(b, end)), (max(a, end), b)]
            after += [(x, y, owner if i == 1 else was) for i, (x, y) in enumerate(parts) if x < y]
        self.blocks = sorted(after)
        self.merge()

    def growth(self, i):
        """The size to which a free block can grow."""
        start, end, _ = self.blocks[i]
        is_last = i + 1 == len(self.blocks) or self.blocks[i + 1][2] != ""
        return end - start + (0 if is_last else self.blocks[i + 1][1] - self.blocks[i + 1][0])

    def allocate(self, size, owner):
        free = [
            (end - start, start, i)
            for i, (start, end, was) in enumerate(self.blocks)
            if was is None and end - start >= size
        ]
        free.sort()
        if free:
            place = free[0]
            for other in free[1:]:
                if self.growth(other[2]) >= self.growth(place[2]):
                    break
                place = other
            start = place[1]
        else:
            start = self.lowest_room(size)
            at = start
            while at < start + size:
                block = next(one for one in self.blocks if one[0] <= at < one[1])
                if block[2] == "":
                    missing = -(-(start + size - at) // PAGE) * PAGE
                    self.put(at, min(block[1], at + missing), None)
                at = next(one for one in self.blocks if one[0] <= at < one[1])[1]
        self.put(start, start + size, owner)
        return start

    def lowest_room(self, size):
        for i, (_, _, owner) in enumerate(self.blocks):
            if owner != "":
                continue
            first = i - 1 if i > 0 and self.blocks[i - 1][2] is None else i
            room = 0
            for start, end, other in self.blocks[first:]:
                if other not in (None, ""):
                    break
                room += end - start
            if room >= size:
                return self.blocks[first][0]
        raise AssertionError("no room")

    def free(self, owner):
        start, end, _ = next(one for one in self.blocks if one[2] == owner)
        self.put(start, end, None)

    def empty(self):
        for start, end, owner in list(self.blocks):
            first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
            if owner is None and first < last:
                self.put(first, last, "")

    def reserved(self):
        return sum(end - start for start, end, owner in self.blocks if owner != "")


class TestModel(ExpandableTestCase):
    @parametrize("seed", range(8))
    def test_addresses_are_those_of_the_model(self, seed):
        choice = random.Random(seed)
        model = Model(1 << 40)
        base = allocate(2 * MIB)
        live = {0: base}
        model.allocate(2 * MIB, 0)
        origin = base.data_ptr()
        for i in range(1, 300):
            action = choice.random()
            if action < 0.55 and self.reserved() < 400 * MIB:
                size = choice.randrange(MIB + 512, 60 * MIB, 512)
                live[i] = allocate(size)
                self.assertEqual(live[i].data_ptr() - origin, model.allocate(size, i))
            elif action < 0.95 and len(live) > 1:
                victim = choice.choice([one for one in live if one != 0])
                del live[victim]
                model.free(victim)
            else:
                memory.empty_cache()
                model.empty()
            self.assertEqual(self.reserved(), model.reserved())
        self.assertTrue(_C._is_allocator_valid(0))


instantiate_parametrized_tests(TestGrowth)
instantiate_parametrized_tests(TestShortage)
instantiate_parametrized_tests(TestModel)

if __name__ == "__main__":
    run_tests()
