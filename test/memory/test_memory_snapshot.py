"""Snapshots and the history of the allocator, and torch's own viewer reading them."""

import gc
import pickle
import tempfile
import time
import unittest
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
    run_child,
    run_tests,
)
from torch.cuda import _memory_viz

from torch_openreg._torch_release import HAS_PINNED_HISTORY

pytestmark = pytest.mark.sample(0.3)

memory = torch.openreg.memory
MIB = 1024 * 1024


def allocate(size, device=DEVICE_TYPE):
    return torch.empty(size, dtype=torch.uint8, device=device)


def block_at(address):
    """The snapshot's block at an address."""
    blocks = [b for s in memory.memory_snapshot() for b in s["blocks"] if b["address"] == address]
    assert len(blocks) == 1, blocks
    return blocks[0]


def functions(frames):
    """The names of the functions of this file in a stack, innermost first."""
    return [frame["name"] for frame in frames if frame["filename"] == __file__]


class SnapshotTestCase(OpenRegTestCase):
    SIZE = 41 * MIB  # no cached block of another test fits

    def setUp(self):
        super().setUp()
        gc.collect()
        torch.accelerator.synchronize()
        torch.openreg.empty_cache()

    def tearDown(self):
        memory._record_memory_history(None, clear_history=True)
        super().tearDown()

    def events(self, device=0):
        """(action, size) of the device's history, without snapshots."""
        trace = memory._snapshot()["device_traces"][device]
        return [(e["action"], e["size"]) for e in trace if e["action"] != "snapshot"]


class TestSnapshot(SnapshotTestCase):
    def test_blocks_tile_their_segments_and_add_up_to_the_statistics(self):
        tensors = [allocate(size) for size in (1, 700, 3 * MIB, self.SIZE)]
        del tensors[1]
        side = torch.openreg.Stream()
        with StreamGate(side):
            tensors[1].record_stream(side)
            del tensors[1]
            segments = memory.memory_snapshot()
        stats = [torch.openreg.memory_stats(index) for index in range(DEVICE_COUNT)]
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:
                self.assertEqual(block["address"], address)
                address += block["size"]
            self.assertEqual(address - segment["address"], segment["total_size"])
            sums = {
                state: sum(b["size"] for b in segment["blocks"] if b["state"] == state)
                for state in ("active_allocated", "active_awaiting_free", "inactive")
            }
            self.assertEqual(sum(sums.values()), segment["total_size"])
            self.assertEqual(segment["allocated_size"], sums["active_allocated"])
            self.assertEqual(segment["active_size"], segment["total_size"] - sums["inactive"])
        for index in range(DEVICE_COUNT):
            mine = [s for s in segments if s["device"] == index]
            for key, name in [
                ("total_size", "reserved_bytes"),
                ("allocated_size", "allocated_bytes"),
                ("active_size", "active_bytes"),
                ("requested_size", "requested_bytes"),
            ]:
                if stats[index]:
                    self.assertEqual(sum(s[key] for s in mine), stats[index][f"{name}.all.current"])
        self.assertIn("active_awaiting_free", [b["state"] for s in segments for b in s["blocks"]])

    def test_segment_names_stream_and_class(self):
        side = torch.openreg.Stream()
        with side:
            x = allocate(self.SIZE)
        (segment,) = [s for s in memory.memory_snapshot() if s["address"] == x.data_ptr()]
        self.assertEqual(segment["stream"], side.stream_id)
        self.assertEqual(segment["segment_type"], "large")
        self.assertEqual(segment["segment_pool_id"], (0, 0))
        self.assertFalse(segment["is_expandable"])
        self.assertEqual(segment["requested_size"], self.SIZE)

    def test_before_use_there_is_nothing(self):
        run_child(
            """
            import torch
            from torch_openreg import _C
            assert torch.openreg.memory_snapshot() == []
            snapshot = torch.openreg.memory._snapshot()
            assert snapshot["segments"] == []
            assert snapshot["device_traces"] == [[] for _ in range(torch.openreg.device_count())]
            assert not _C._is_device_active(0)
            """
        )


class TestPinnedHistory(SnapshotTestCase):
    SIZE = 5 * MIB
    ROUNDED = 8 * MIB  # a power of two

    def tearDown(self):
        if HAS_PINNED_HISTORY:
            memory._record_memory_history(None, record_pinned_host_memory=True, clear_history=True)
        super().tearDown()

    @unittest.skipIf(HAS_PINNED_HISTORY, "what torch 2.13 lacks")
    def test_a_torch_that_cannot_record_it_says_so(self):
        with self.assertRaisesRegex(RuntimeError, "got True; torch 2.13.* does not record"):
            memory._record_memory_history(record_pinned_host_memory=True)
        self.assertFalse(memory._is_recording_history())
        self.assertNotIn("host_traces", memory._snapshot())

    @unittest.skipUnless(HAS_PINNED_HISTORY, "torch 2.13 does not record pinned memory")
    def test_pinned_memory_leaves_events_with_the_stack_of_who_allocated_it(self):
        torch.openreg.empty_host_cache()
        memory._record_memory_history(record_pinned_host_memory=True, clear_history=True)
        x = torch.empty(self.SIZE, dtype=torch.uint8, pin_memory=True)
        snapshot = memory._snapshot()
        (segment,) = [s for s in snapshot["host_segments"] if s["address"] == x.data_ptr()]
        self.assertTrue(segment["allocated"] and segment["active"])
        self.assertEqual(segment["size"], self.ROUNDED)
        del x
        torch.openreg.empty_host_cache()
        events = [e for e in memory._snapshot()["host_traces"] if e["size"] == self.ROUNDED]
        self.assertEqual(
            [event["action"] for event in events],
            ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"],
        )
        self.assertLess(abs(events[0]["time_us"] - time.time() * 1e6), 60e6)
        self.assertIn(self.id().split(".")[-1], functions(events[1]["frames"]))

    @unittest.skipUnless(HAS_PINNED_HISTORY, "torch 2.13 does not record pinned memory")
    def test_each_kind_of_memory_is_recorded_if_asked_for(self):
        for of_device, of_host in ((True, False), (False, True)):
            memory._record_memory_history(
                clear_history=True,
                record_device_memory=of_device,
                record_pinned_host_memory=of_host,
            )
            x = allocate(self.SIZE)
            y = torch.empty(self.SIZE, dtype=torch.uint8, pin_memory=True)
            del x, y
            self.assertEqual(bool(self.events()), of_device)
            self.assertEqual(bool(memory._snapshot()["host_traces"]), of_host)


class TestHistory(SnapshotTestCase):
    def test_every_step_of_a_block_is_an_event(self):
        memory._record_memory_history(clear_history=True)
        x = allocate(self.SIZE)
        address = x.data_ptr()
        del x
        torch.openreg.empty_cache()
        # Segments of this size are multiples of 2 MiB.
        size, segment_size = self.SIZE, 42 * MIB
        self.assertEqual(
            self.events(),
            [
                ("segment_alloc", segment_size),
                ("alloc", size),
                ("free_requested", size),
                ("free_completed", size),
                ("segment_free", segment_size),
            ],
        )
        self.assertLess(size, segment_size)
        self.assertEqual(
            {
                e["addr"]
                for e in memory._snapshot()["device_traces"][0]
                if e["action"] != "snapshot"
            },
            {address},
        )

    def test_allocations_have_the_requested_size_and_blocks_have_both(self):
        memory._record_memory_history(clear_history=True)
        x = torch.empty(40, dtype=torch.uint8, device=DEVICE_TYPE)
        block = block_at(x.data_ptr())
        self.assertEqual(block["requested_size"], 40)
        self.assertGreater(block["size"], 40)
        side = torch.openreg.Stream()
        with StreamGate(side):
            x.record_stream(side)
            del x
        side.synchronize()
        y = torch.empty(41, dtype=torch.uint8, device=DEVICE_TYPE)  # completes the free
        self.assertEqual(
            [event for event in self.events() if not event[0].startswith("segment")],
            [("alloc", 40), ("free_requested", 40), ("free_completed", 40), ("alloc", 41)],
        )
        del y

    def test_free_is_completed_when_the_other_stream_has_passed(self):
        memory._record_memory_history(clear_history=True)
        side = torch.openreg.Stream()
        x = allocate(self.SIZE)
        with StreamGate(side):
            x.record_stream(side)
            del x
            self.assertEqual(self.events()[-1][0], "free_requested")
        side.synchronize()
        y = allocate(self.SIZE)
        self.assertEqual([action for action, _ in self.events()[-2:]], ["free_completed", "alloc"])
        del y

    def test_out_of_memory_is_an_event_with_what_was_free(self):
        memory._record_memory_history(clear_history=True)
        with self.assertRaises(torch.OutOfMemoryError):
            allocate(1 << 50)
        event = [e for e in memory._snapshot()["device_traces"][0] if e["action"] == "oom"][-1]
        self.assertEqual(event["size"], 1 << 50)
        self.assertEqual(event["device_free"], torch.openreg.mem_get_info()[0])
        self.assertNotIn("addr", event)

    def test_events_have_the_time_they_happened(self):
        before = time.time_ns() // 1000
        memory._record_memory_history(clear_history=True)
        x = allocate(self.SIZE)
        after = time.time_ns() // 1000
        times = [e["time_us"] for e in memory._snapshot()["device_traces"][0]]
        self.assertEqual(times, sorted(times))
        # The clocks are converted into each other, which is exact to some microseconds.
        slack = 10_000
        self.assertLess(before - slack, times[0])
        self.assertLess(times[0], after + slack)
        del x

    def test_stack_of_the_allocation_stays_with_the_block(self):
        memory._record_memory_history()

        def somebody():
            return allocate(self.SIZE)

        x = somebody()
        frames = block_at(x.data_ptr())["frames"]
        self.assertEqual(functions(frames)[:2], ["allocate", "somebody"])
        del x
        torch.openreg.synchronize()

    @parametrize(
        "context,with_alloc,with_free",
        [
            (None, False, False),
            ("state", False, False),
            ("alloc", True, False),
            ("all", True, True),
        ],
    )
    def test_context_says_whose_stacks_are_kept(self, context, with_alloc, with_free):
        memory._record_memory_history(context=context, stacks="python", clear_history=True)
        x = allocate(self.SIZE)
        self.assertEqual(bool(block_at(x.data_ptr())["frames"]), context is not None)
        del x
        frames = {
            e["action"]: bool(functions(e["frames"]))
            for e in memory._snapshot()["device_traces"][0]
        }
        self.assertEqual(frames["alloc"], with_alloc)
        self.assertEqual(frames["free_requested"], with_free)

    @parametrize("context,is_here", [("alloc", False), ("all", True)])
    def test_segment_is_given_back_with_the_stack_of_who_did_that(self, context, is_here):
        def give_back():
            torch.openreg.empty_cache()

        memory._record_memory_history(context=context, stacks="python", clear_history=True)
        allocate(self.SIZE)
        give_back()
        (event,) = [
            e for e in memory._snapshot()["device_traces"][0] if e["action"] == "segment_free"
        ]
        self.assertEqual("give_back" in functions(event["frames"]), is_here)
        self.assertTrue(functions(event["frames"]))

    def test_stacks_of_all_have_native_frames(self):
        def files(stacks):
            memory._record_memory_history(stacks=stacks, clear_history=True)
            x = allocate(self.SIZE)
            return {Path(f["filename"]).suffix for f in block_at(x.data_ptr())["frames"]}

        self.assertLessEqual(files("python"), {".py", ""})  # pytest itself has no suffix
        self.assertGreater(files("all"), files("python"))

    def test_state_keeps_no_events(self):
        memory._record_memory_history("state", clear_history=True)
        x = allocate(self.SIZE)
        self.assertEqual(self.events(), [])
        self.assertTrue(block_at(x.data_ptr())["frames"])

    def test_only_the_newest_events_are_kept(self):
        memory._record_memory_history(max_entries=4, clear_history=True)
        for size in range(1, 20):
            allocate(size * 512)
        self.assertEqual(
            self.events(),
            [
                ("alloc", 19 * 512),
                ("free_requested", 19 * 512),
                ("free_completed", 19 * 512),
            ],
            msg="the fourth entry is that of the snapshot",
        )
        memory._record_memory_history(max_entries=2)
        allocate(512)
        self.assertEqual([action for action, _ in self.events()], ["free_completed"])
        memory._record_memory_history(max_entries=100)
        allocate(1024)
        self.assertEqual(self.events()[-3:][0], ("alloc", 1024))

    def test_actions_can_be_skipped(self):
        skipped = ["free_requested", "segment_alloc", "snapshot"]
        memory._record_memory_history(skip_actions=skipped, clear_history=True)
        allocate(self.SIZE)
        actions = [e["action"] for e in memory._snapshot()["device_traces"][0]]
        self.assertEqual(actions, ["alloc", "free_completed"])

    @parametrize("context", ["state", "alloc", "all"])
    def test_history_is_forgotten_when_recording_ends(self, context):
        memory._record_memory_history()
        allocate(self.SIZE)
        self.assertGreater(len(self.events()), 0)
        memory._record_memory_history(None)
        self.assertEqual(self.events(), [])
        memory._record_memory_history(context=context)
        self.assertEqual(self.events(), [])
        allocate(self.SIZE)
        self.assertGreater(len(self.events()), 0)
        memory._record_memory_history(None)
        allocate(self.SIZE)
        self.assertEqual(self.events(), [])

    def test_snapshot_takes_the_arguments_of_torch_cuda(self):
        memory._record_memory_history()
        x = allocate(self.SIZE)
        for augment in (False, True):
            snapshot = memory._snapshot(augment_with_fx_traces=augment)
            self.assertIn(x.data_ptr(), [e.get("addr") for e in snapshot["device_traces"][0]])

    def test_settings_are_replaced(self):
        before = memory._snapshot()["allocator_settings"]["PYTORCH_ALLOC_CONF"]
        memory._set_allocator_settings("max_split_size_mb:40")
        self.addCleanup(memory._set_allocator_settings, before)
        self.assertEqual(memory._snapshot()["allocator_settings"]["max_split_size"], 40 * MIB)
        with self.assertRaises(ValueError):
            memory._set_allocator_settings("no_such_key:1")

    @requires_two_devices
    def test_each_device_has_its_history(self):
        memory._record_memory_history(clear_history=True)
        x = allocate(self.SIZE, f"{DEVICE_TYPE}:1")
        self.assertEqual(self.events(0), [])
        self.assertEqual([action for action, _ in self.events(1)], ["segment_alloc", "alloc"])
        del x

    @parametrize(
        "arguments",
        [
            {"enabled": "some"},
            {"context": "none"},
            {"stacks": "c++"},
            {"max_entries": -1},
            {"skip_actions": ["allocate"]},
        ],
    )
    def test_bad_argument_is_refused(self, arguments):
        with self.assertRaisesRegex(ValueError, "expected .* got"):
            memory._record_memory_history(**arguments)


class TestViewer(SnapshotTestCase):
    """What ``torch.cuda._memory_viz`` makes of a snapshot."""

    def snapshot(self):
        memory._record_memory_history(clear_history=True)
        tensors = [allocate(size) for size in (1, 5 * MIB, self.SIZE)]
        del tensors[1]
        return memory._snapshot()

    def test_text_views_read_it(self):
        snapshot = self.snapshot()
        self.assertIn("total_reserved", _memory_viz.segsum(snapshot))
        text = _memory_viz.trace(snapshot)
        self.assertIn("cudaMalloc", text)  # the viewer's word for a segment
        self.assertIn("42.0MiB", text)
        for view in (_memory_viz.segments, _memory_viz.memory):
            lines = []
            view(snapshot, format_flamegraph=lambda text, lines=lines: lines.append(text))
            self.assertIn("active_allocated", lines[0])

    def test_plots_render(self):
        snapshot = self.snapshot()
        for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
            page = plot(snapshot)
            self.assertIn("<script", page)
            self.assertGreater(len(page), 1000)

    def test_dump_is_a_pickle_of_the_snapshot(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.pickle"
            x = allocate(self.SIZE)
            memory._dump_snapshot(path)
            with path.open("rb") as file:
                snapshot = pickle.load(file)
        self.assertEqual(snapshot["segments"], memory.memory_snapshot())
        self.assertEqual(len(snapshot["device_traces"]), DEVICE_COUNT)
        self.assertEqual(snapshot["allocator_settings"]["expandable_segments"], False)
        del x


instantiate_parametrized_tests(TestHistory)

if __name__ == "__main__":
    run_tests()
