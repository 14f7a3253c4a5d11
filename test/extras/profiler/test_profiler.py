"""What torch.profiler and its kin show of the device, and torch.openreg.profiler."""

import gzip
import json
import re
import tempfile
import textwrap
import threading
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
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_tests,
)
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import DeviceType
from torch.profiler import (
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)

from torch_openreg._torch_release import HAS_PROFILER_PATTERNS

pytestmark = pytest.mark.sample(0.15)

# torch's names of the device type, in Python and in traces.
_NAME = {"openreg": "PrivateUse1", "cuda": "CUDA"}[DEVICE_TYPE]
ACTIVITY = getattr(ProfilerActivity, _NAME)
KIND = getattr(DeviceType, _NAME)
LABEL = _NAME.lower()
TITLE = DEVICE_TYPE.upper()
BOTH = [ProfilerActivity.CPU, ACTIVITY]
DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


def profile_both(**options):
    return profile(activities=BOTH, **options)


def device_events(profiler, *, annotations=False):
    """The events of the device's rows, by start."""
    events = [
        event
        for event in profiler.events()
        if event.device_type == KIND and event.is_user_annotation == annotations
    ]
    return sorted(events, key=lambda event: event.time_range.start)


def device_names(profiler):
    return [event.name for event in device_events(profiler)]


def calls(profiler):
    return [event for event in profiler.events() if event.name.startswith("or")]


def kernel_of(operator):
    """The name of an operator's kernel; that of an overload, if it has one, is part of it."""
    return f"openreg_kernel<{operator}>"


def operator_of(kernel):
    """The operator of a kernel, without its overload."""
    return re.fullmatch(r"openreg_kernel<([\w:]+)(\.\w+)?>", kernel)[1]


class Trace:
    """An exported trace, by kind of event."""

    def __init__(self, profiler):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            self.document = json.loads(path.read_text())
        self.events = self.document["traceEvents"]

    def of(self, *categories):
        return [e for e in self.events if e["ph"] == "X" and e["cat"] in categories]

    def work(self):
        return self.of(*DEVICE_CATEGORIES)

    def named(self, name):
        (event,) = [e for e in self.events if e["ph"] == "X" and e["name"] == name]
        return event

    def calls(self):
        return self.of(f"{LABEL}_runtime")

    def arrows(self, phase):
        return [e for e in self.events if e["ph"] == phase and e["cat"] == "ac2g"]

    def labels(self, name):
        """Names of rows: by process, and thread."""
        return {
            (e["pid"], e["tid"]): e["args"]["name"]
            for e in self.events
            if e["ph"] == "M" and e["name"] == name
        }


def row_of(event):
    return event["pid"], event["tid"]


class ProfilerTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        # Objects that are created here are not in the traces.
        self.x = torch.randn(64, 64, device=DEVICE_TYPE)
        torch.openreg.synchronize()

    def tearDown(self):
        self.assertFalse(torch.autograd._profiler_enabled())
        super().tearDown()

    def assert_well_formed(self, trace):
        """Checks the properties of every trace."""
        (end,) = [e["ts"] for e in trace.events if e["name"] == "Record Window End"]
        start = min(e["ts"] for e in trace.of("Trace"))
        processes = trace.labels("process_name")
        threads = trace.labels("thread_name")
        by_id = {}
        for call in trace.calls():
            self.assertNotIn(call["args"]["correlation"], by_id)
            by_id[call["args"]["correlation"]] = call
        for event in [*trace.work(), *trace.calls()]:
            self.assertGreaterEqual(event["ts"], start)
            self.assertLessEqual(event["ts"] + event["dur"], end)
            self.assertGreaterEqual(event["dur"], 0)
        for event in trace.work():
            self.assertEqual(processes[event["pid"], 0], f"{DEVICE_TYPE}:{event['pid']}")
            self.assertRegex(threads[row_of(event)], rf"^stream {event['tid']}\b")
            self.assertEqual(event["args"]["device"], event["pid"])
            self.assertEqual(event["args"]["stream"], event["tid"])
            self.assertGreaterEqual(event["args"]["queue delay (us)"], 0)
            call = by_id[event["args"]["correlation"]]
            self.assertGreaterEqual(event["ts"], call["ts"])
        self.assert_arrows_are_complete(trace)
        self.assert_streams_do_one_thing_at_a_time(trace)

    def assert_arrows_are_complete(self, trace):
        starts = {arrow["id"]: arrow for arrow in trace.arrows("s")}
        ends = {arrow["id"]: arrow for arrow in trace.arrows("f")}
        self.assertEqual(len(starts), len(trace.arrows("s")), "an arrow has two starts")
        self.assertEqual(set(starts), set(ends))
        self.assertEqual(set(starts), {e["args"]["correlation"] for e in trace.work()})
        for call in trace.calls():
            arrow = starts.get(call["args"]["correlation"])
            if arrow is not None:
                self.assertEqual((*row_of(arrow), arrow["ts"]), (*row_of(call), call["ts"]))
        for event in trace.work():
            arrow = ends[event["args"]["correlation"]]
            self.assertEqual((*row_of(arrow), arrow["ts"]), (*row_of(event), event["ts"]))

    def assert_streams_do_one_thing_at_a_time(self, trace):
        free_from = {}
        for event in sorted(trace.work(), key=lambda event: event["ts"]):
            # Times in the file are rounded to nanoseconds.
            self.assertGreaterEqual(event["ts"] + 0.0015, free_from.get(row_of(event), 0))
            free_from[row_of(event)] = event["ts"] + event["dur"]


class TestActivities(ProfilerTestCase):
    def test_activity_has_the_name_of_the_device(self):
        self.assertIs(getattr(ProfilerActivity, DEVICE_TYPE.upper()), ACTIVITY)
        self.assertIn(ACTIVITY, supported_activities())

    def test_kernel_belongs_to_its_operator_and_its_call(self):
        with profile_both() as profiler:
            self.x.relu()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        (kernel,) = trace.work()
        self.assertEqual(kernel["cat"], "kernel")
        (call,) = [e for e in trace.calls() if e["name"] == "orLaunchKernel"]
        operator = trace.of("cpu_op")[0]
        self.assertEqual(operator["name"], "aten::relu")
        self.assertEqual(kernel["args"]["External id"], operator["args"]["External id"])
        self.assertEqual(call["args"]["External id"], operator["args"]["External id"])
        self.assertEqual(row_of(call), row_of(operator))

    def test_operator_has_the_time_of_its_kernel(self):
        with profile_both() as profiler:
            self.x @ self.x
        (kernel,) = device_events(profiler)
        operators = {event.name: event for event in profiler.events()}
        for name in ("aten::matmul", "aten::mm"):
            event = next(
                e for e in profiler.events() if e.name == name and e.device_type == DeviceType.CPU
            )
            self.assertEqual(event.device_time_total, kernel.device_time_total)
        self.assertEqual(operators["aten::matmul"].self_device_time_total, 0)
        self.assertGreater(kernel.device_time_total, 0)

    def test_every_operator_of_a_step_has_its_kernels(self):
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )
        model = model.to(DEVICE_TYPE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with profile_both() as profiler:
            model(self.x).sum().backward()
            optimizer.step()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        operators = {e["args"]["External id"]: e for e in trace.of("cpu_op")}
        names = {operators[e["args"]["External id"]]["name"] for e in trace.work()}
        self.assertLessEqual({"aten::addmm", "aten::relu", "aten::mm", "aten::sum"}, names)
        # Backward kernels are launched by the autograd thread, and belong to its operators.
        threads = {call["tid"] for call in trace.calls() if call["name"] == "orLaunchKernel"}
        self.assertEqual(len(threads), 2)

    def test_queue_delay_is_the_time_from_submission_to_start(self):
        with profile_both() as profiler, StreamGate() as gate:
            self.x.relu()
            submitted = time.perf_counter_ns()
            gate.wait_until_reached()
            held_us = (time.perf_counter_ns() - submitted) / 1000
            gate.open()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        self.assertGreaterEqual(trace.work()[-1]["args"]["queue delay (us)"], held_us)

    def test_work_that_the_calling_thread_does_is_shown(self):
        y = torch.ones(3, 3, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with profile_both() as profiler:
            torch.nonzero(y)
            torch.equal(y, y)
            y.sum().item()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        names = [event["name"] for event in trace.work()]
        self.assertEqual(
            names,
            [
                kernel_of("aten::nonzero"),
                "Memcpy HtoD",  # of the result, whose size the kernel found out
                kernel_of("aten::equal"),
                kernel_of("aten::sum.dim_IntList"),
                "Memcpy DtoH",
            ],
        )

    def test_waits_are_shown_with_the_thread_that_waited(self):
        event = torch.openreg.Event()
        with profile_both() as profiler:
            self.x.relu()
            event.record()
            event.synchronize()
            torch.openreg.current_stream().synchronize()
            torch.openreg.synchronize()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        names = [event["name"] for event in sorted(trace.calls(), key=lambda e: e["ts"])]
        self.assertEqual(
            names[:5],
            [
                "orLaunchKernel",
                "orEventRecord",
                "orEventSynchronize",
                "orStreamSynchronize",
                "orDeviceSynchronizeIndex",
            ],
        )

    def test_driver_s_allocation_is_shown_with_its_size(self):
        torch.openreg.empty_cache()
        size = 64 * 1024**2
        with profile_both() as profiler:
            torch.empty(size, dtype=torch.uint8, device=DEVICE_TYPE)
            torch.openreg.empty_cache()
        trace = Trace(profiler)
        self.assertEqual(trace.named("orMalloc")["args"]["bytes"], size)
        self.assertEqual(trace.named("orFree")["args"]["bytes"], size)

    def test_streams_have_rows_of_their_own(self):
        side = torch.openreg.Stream()
        with profile_both() as profiler:
            self.x.relu()
            with torch.openreg.stream(side):
                self.x.neg()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        default, other = sorted(
            trace.work(), key=lambda event: event["name"] != kernel_of("aten::relu")
        )
        names = trace.labels("thread_name")
        self.assertEqual(names[row_of(default)], "stream 0 (default)")
        self.assertNotEqual(row_of(default), row_of(other))
        self.assertNotIn("default", names[row_of(other)])

    @requires_two_devices
    def test_devices_have_rows_of_their_own(self):
        y = self.x.to(f"{DEVICE_TYPE}:1")
        torch.openreg.synchronize(1)
        with profile_both() as profiler:
            self.x.relu()
            y.relu()
            torch.openreg.synchronize(1)
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        self.assertEqual(sorted(event["pid"] for event in trace.work()), [0, 1])
        self.assertEqual(sorted(e.device_index for e in device_events(profiler)), [0, 1])

    def test_properties_of_all_devices_are_in_the_trace(self):
        with profile_both() as profiler:
            self.x.relu()
        devices = Trace(profiler).document["deviceProperties"]
        self.assertEqual([device["id"] for device in devices], list(range(DEVICE_COUNT)))
        expected = torch.openreg.get_device_properties(0)
        self.assertEqual(devices[0]["name"], expected.name)
        self.assertEqual(devices[0]["totalGlobalMem"], expected.total_memory)
        module = torch.cuda if DEVICE_TYPE == "cuda" else torch.openreg
        self.assertEqual(
            (devices[0]["computeMajor"], devices[0]["computeMinor"]),
            module.get_device_capability(0),
        )

    @parametrize(
        "name", ["CONCURRENT_KERNEL", "GPU_MEMCPY", "GPU_MEMSET", f"{LABEL.upper()}_RUNTIME"]
    )
    def test_only_the_activities_asked_for_are_shown(self, name):
        expected = {
            "CONCURRENT_KERNEL": "kernel",
            "GPU_MEMCPY": "gpu_memcpy",
            "GPU_MEMSET": "gpu_memset",
            f"{LABEL.upper()}_RUNTIME": f"{LABEL}_runtime",
        }[name]
        with profile(activities=[{ACTIVITY: [name]}]) as profiler:
            self.x.relu().zero_().cpu()
        trace = Trace(profiler)
        shown = {event["cat"] for event in trace.events if event["ph"] == "X"} - {"Trace"}
        self.assertEqual(shown, {expected})
        self.assertFalse(trace.arrows("s") + trace.arrows("f"))

    def test_without_the_device_s_activity_calls_are_shown_and_work_is_not(self):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            self.x.relu()
        trace = Trace(profiler)
        self.assertFalse(trace.work() + trace.arrows("s") + trace.arrows("f"))
        self.assertIn("orLaunchKernel", [call["name"] for call in trace.calls()])

    def test_without_the_cpu_s_activity_work_belongs_to_no_operator(self):
        with profile(activities=[ACTIVITY]) as profiler:
            self.x.relu()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        (kernel,) = trace.work()
        self.assertNotIn("External id", kernel["args"])


class TestGraphs(ProfilerTestCase):
    def test_replayed_kernels_are_shown_as_those_of_the_launch(self):
        def work():
            return (self.x + 1).relu().mul_(2)

        with torch.openreg.Stream():
            work()
        torch.openreg.synchronize()
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            y = work()
        with profile_both() as eager:
            work()
            torch.openreg.synchronize()
        for _ in range(2):  # each replay leaves its own records
            with profile_both() as replayed:
                graph.replay()
                torch.openreg.synchronize()
            self.assertEqual(device_names(replayed), device_names(eager))
            trace = Trace(replayed)
            launch = trace.named("orGraphLaunch")["args"]["correlation"]
            self.assertEqual({e["args"]["correlation"] for e in trace.work()}, {launch})
            self.assertIn(launch, [arrow["id"] for arrow in trace.arrows("s")])
            self.assert_streams_do_one_thing_at_a_time(trace)
        self.assert_bit_equal(y, work())


class TestNames(ProfilerTestCase):
    """Kernels have different names, so that the name of an operator means the operator."""

    def check_no_work_bears_an_operator_s_name(self, profiler):
        names = device_names(profiler)
        self.assertTrue(names)
        self.assertEqual([name for name in names if name.startswith("aten::")], [])
        return names

    def test_no_kernel_copy_or_fill_bears_an_operator_s_name(self):
        index = torch.zeros(1, dtype=torch.int64, device=DEVICE_TYPE)
        other = torch.empty(64, 64, device=DEVICE_TYPE)
        with profile_both() as profiler:
            for _ in range(2):  # of the fallback: on the calling thread, then on the stream
                torch.linalg.inv(self.x)
            self.x.add(1)  # generated
            self.x.relu()  # hand-written
            self.x.nonzero()
            self.x.cpu()
            self.x.to(DEVICE_TYPE, torch.float64)
            other.copy_(self.x)
            other.copy_(torch.ones(64, 64))
            other.zero_()
            other.t()[::2].zero_()
            other.fill_(2)
            other.uniform_()
            self.x[index]
            self.x.sum().item()
            torch.equal(self.x, other)
        self.check_no_work_bears_an_operator_s_name(profiler)

    def test_a_kernel_s_name_contains_the_operator_s_with_its_overload(self):
        y = torch.empty(64, 64, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with profile_both() as profiler:
            torch.add(self.x, 1, out=y)
        self.assertEqual(device_names(profiler), [kernel_of("aten::add.Tensor")])

    def test_the_fallback_s_kernels_have_one_name_on_thread_and_stream(self):
        with profile_both() as profiler:
            for _ in range(2):
                torch.cdist(self.x, self.x, compute_mode="donot_use_mm_for_euclid_dist")
        names = [n for n in device_names(profiler) if n.startswith("openreg_kernel<aten::_cdist")]
        self.assertEqual(len(names), 2)
        self.assertEqual(len(set(names)), 1)

    def test_averages_have_one_row_per_operator_and_others_for_kernels(self):
        with profile_both() as profiler:
            for _ in range(3):
                self.x + self.x
        rows = [(row.key, row.device_type, row.count) for row in profiler.key_averages()]
        self.assertEqual(
            [row for row in rows if "aten::add" in row[0]],
            [
                ("aten::add", DeviceType.CPU, 3),
                (kernel_of("aten::add.Tensor"), KIND, 3),
            ],
        )

    def test_events_found_by_an_operator_s_name_are_the_operator_s(self):
        with profile_both(record_shapes=True) as profiler:
            torch.mm(self.x, self.x)
        shapes = [e.input_shapes for e in profiler.events() if e.name == "aten::mm"]
        self.assertEqual(shapes, [[[64, 64], [64, 64]]])

    @unittest.skipUnless(HAS_PROFILER_PATTERNS, "torch 2.14 removed its patterns")
    def test_torch_s_patterns_match_operators(self):
        from torch.profiler._pattern_matcher import MatMulDimInFP16Pattern

        half = torch.ones(65, 65, device=DEVICE_TYPE, dtype=torch.half)
        with profile_both(record_shapes=True, with_stack=True) as profiler:
            torch.mm(half, half)
        (event,) = MatMulDimInFP16Pattern(profiler).matched_events()
        self.assertEqual(event.name, "aten::mm")


class TestCopies(ProfilerTestCase):
    def check(self, name, size, copy, device=0):
        torch.openreg.synchronize()
        with profile_both() as profiler:
            copy()
            torch.openreg.synchronize(device)
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        (event,) = trace.work()
        self.assertEqual((event["cat"], event["name"]), ("gpu_memcpy", name))
        self.assertEqual(event["args"]["bytes"], size)
        bandwidth = size / 1e3 / max(event["dur"], 1e-3)
        # The file has the duration in whole nanoseconds, and six digits of the bandwidth.
        self.assertEqual(event["args"]["memory bandwidth (GB/s)"], bandwidth, rtol=1e-3, atol=1e-5)
        return event

    @parametrize("size", [1, 64 * 1024, 2**20])
    @parametrize("is_pinned", [False, True])
    @parametrize("non_blocking", [False, True])
    def test_from_the_host(self, size, is_pinned, non_blocking):
        source = torch.ones(size, dtype=torch.uint8, pin_memory=is_pinned)
        target = torch.empty(size, dtype=torch.uint8, device=DEVICE_TYPE)
        self.check("Memcpy HtoD", size, lambda: target.copy_(source, non_blocking=non_blocking))

    @parametrize("is_pinned", [False, True])
    @parametrize("non_blocking", [False, True])
    def test_to_the_host(self, is_pinned, non_blocking):
        target = torch.empty(64, 64, pin_memory=is_pinned)
        self.check(
            "Memcpy DtoH", 4 * 64 * 64, lambda: target.copy_(self.x, non_blocking=non_blocking)
        )

    def test_to_the_host_while_the_stream_is_busy(self):
        target = torch.empty(64, 64)
        gate = StreamGate()
        opened = threading.Event()

        def open_gate():
            gate.wait_until_reached()
            gate.open()
            opened.set()

        with profile_both() as profiler, gate:
            thread = threading.Thread(target=open_gate)
            thread.start()
            target.copy_(self.x)
            thread.join()
        self.assertTrue(opened.is_set())
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        (copy,) = trace.of("gpu_memcpy")
        self.assertEqual(copy["name"], "Memcpy DtoH")

    def test_on_one_device(self):
        self.check("Memcpy DtoD", 4 * 64 * 64, self.x.clone)

    def test_a_conversion_is_a_kernel(self):
        with profile_both() as profiler:
            self.x.double()
        self.assertEqual(device_names(profiler), [kernel_of("aten::copy_")])

    @requires_two_devices
    def test_between_devices(self):
        target = torch.empty(64, 64, device=f"{DEVICE_TYPE}:1")
        torch.openreg.synchronize(1)
        event = self.check("Memcpy PtoP", 4 * 64 * 64, lambda: target.copy_(self.x), device=1)
        self.assertEqual(event["pid"], 0)
        self.assertEqual(event["args"]["peer device"], 1)

    def test_zeroing_is_a_memset(self):
        with profile_both() as profiler:
            self.x.zero_()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        (event,) = trace.work()
        self.assertEqual((event["cat"], event["name"]), ("gpu_memset", "Memset"))
        self.assertEqual(event["args"]["bytes"], 4 * 64 * 64)

    def test_zeroing_with_gaps_is_a_kernel(self):
        with profile_both() as profiler:
            self.x[::2].zero_()
        self.assertEqual(device_names(profiler), [kernel_of("aten::zero_")])


class TestAnnotations(ProfilerTestCase):
    def annotations(self, trace):
        return {event["name"]: event for event in trace.of("gpu_user_annotation")}

    def assert_covers(self, annotation, *events):
        self.assertTrue(events)
        for event in events:
            self.assertEqual(row_of(annotation), row_of(event))
            self.assertLessEqual(annotation["ts"], event["ts"])
            self.assertGreaterEqual(
                annotation["ts"] + annotation["dur"] + 0.0015, event["ts"] + event["dur"]
            )

    def test_blocks_are_shown_on_the_rows_of_their_work(self):
        with profile_both() as profiler:
            with record_function("outer"):
                self.x.relu()
                with record_function("inner"):
                    self.x.exp()
                with record_function("nothing"):
                    pass
            self.x.neg()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        shown = self.annotations(trace)
        self.assertEqual(set(shown), {"outer", "inner"})
        kernels = {operator_of(event["name"]): event for event in trace.work()}
        self.assert_covers(shown["outer"], kernels["aten::relu"], kernels["aten::exp"])
        self.assert_covers(shown["inner"], kernels["aten::exp"])
        self.assertLess(shown["outer"]["ts"] + shown["outer"]["dur"], kernels["aten::neg"]["ts"])

    def test_a_block_is_shown_once_per_stream(self):
        side = torch.openreg.Stream()
        with profile_both() as profiler, record_function("block"):
            self.x.relu()
            with torch.openreg.stream(side):
                self.x.neg()
        rows = {row_of(event) for event in Trace(profiler).of("gpu_user_annotation")}
        self.assertEqual(len(rows), 2)

    def test_a_block_of_another_thread_covers_that_thread_s_work_alone(self):
        def work():
            with record_function("mine"):
                self.x.neg()

        with (
            profile(
                activities=BOTH, experimental_config=_ExperimentalConfig(profile_all_threads=True)
            ) as profiler,
            record_function("theirs"),
        ):
            call_in_thread(work)
        shown = self.annotations(Trace(profiler))
        self.assertEqual(set(shown), {"mine"})

    def test_annotations_do_not_count_as_work(self):
        with profile_both() as profiler, record_function("block"):
            self.x.relu()
        (kernel,) = device_events(profiler)
        (annotation,) = device_events(profiler, annotations=True)
        self.assertEqual(annotation.name, "block")
        table = profiler.key_averages().table()
        total = table.splitlines()[-2:]
        self.assertTrue(any(f"Self {TITLE} time total" in line for line in total))
        averages = {e.key: e for e in profiler.key_averages() if e.device_type == DeviceType.CPU}
        self.assertEqual(averages["block"].device_time_total, kernel.device_time_total)

    def test_ranges_and_marks_are_shown_on_the_thread_and_ranges_on_the_rows_of_their_work(self):
        with profile_both() as profiler, torch.openreg.profiler.range("step {}", 7):
            torch.openreg.profiler.mark("begin")
            self.x.relu()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        (kernel,) = trace.work()
        self.assert_covers(self.annotations(trace)["step 7"], kernel)
        on_host = {event["name"]: event for event in trace.of(f"{LABEL}_driver")}
        self.assertEqual(set(on_host), {"step 7", "begin"})
        self.assertEqual(on_host["begin"]["dur"], 0)
        self.assertEqual(row_of(on_host["begin"]), row_of(on_host["step 7"]))

    def test_names_cannot_break_the_file(self):
        with profile_both() as profiler, torch.openreg.profiler.range('a "b" \\ c\n'):
            self.x.relu()
        self.assertEqual(set(self.annotations(Trace(profiler))), {"a 'b' ' c "})


class TestResults(ProfilerTestCase):
    def test_table_has_the_device_s_columns(self):
        with profile_both() as profiler:
            self.x @ self.x
        averages = profiler.key_averages()
        table = averages.table(sort_by="device_time_total", row_limit=1)
        for column in (f"Self {TITLE}", f"Self {TITLE} %", f"{TITLE} total", f"{TITLE} time avg"):
            self.assertIn(column, table)
        self.assertIn("aten::m", table.splitlines()[3])
        self.assertEqual(averages.table(sort_by=f"{LABEL}_time_total", row_limit=1), table)
        kernel = next(e for e in averages if e.device_type == KIND)
        self.assertEqual(kernel.count, 1)
        self.assertEqual(kernel.device_time, kernel.device_time_total)

    def test_shapes_are_recorded(self):
        with profile_both(record_shapes=True) as profiler:
            self.x @ self.x
        grouped = profiler.key_averages(group_by_input_shape=True)
        shapes = [e.input_shapes for e in grouped if e.key == "aten::mm" and e.input_shapes]
        self.assertEqual(shapes, [[[64, 64], [64, 64]]])

    def test_operations_are_counted(self):
        with profile_both(with_flops=True) as profiler:
            self.x @ self.x
        flops = {event.key: event.flops for event in profiler.key_averages() if event.flops}
        self.assertEqual(flops["aten::mm"], 2 * 64**3)

    def test_stacks_are_recorded_and_exported(self):
        def multiply():
            return self.x @ self.x

        # Python's stacks need the verbose events in torch 2.13.
        with profile_both(
            with_stack=True, experimental_config=_ExperimentalConfig(verbose=True)
        ) as profiler:
            multiply()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "stacks.txt"
            for metric in ("self_cpu_time_total", f"self_{LABEL}_time_total"):
                profiler.export_stacks(str(path), metric)
                self.assertIn("multiply", path.read_text())

    def test_modules_are_accepted(self):
        model = torch.nn.Linear(64, 4).to(DEVICE_TYPE)
        with profile_both(with_modules=True, with_stack=True) as profiler:
            model(self.x)
        self.assertIn("aten::addmm", [operator_of(name) for name in device_names(profiler)])

    def test_memory_is_attributed_to_operators(self):
        torch.openreg.synchronize()
        with profile_both(profile_memory=True) as profiler:
            y = torch.empty(1024, 1024, device=DEVICE_TYPE)
            del y
        averages = {event.key: event for event in profiler.key_averages()}
        self.assertEqual(averages["aten::empty"].self_device_memory_usage, 4 * 1024**2)
        self.assertEqual(averages["[memory]"].self_device_memory_usage, -4 * 1024**2)
        self.assertIn(f"{TITLE} Mem", profiler.key_averages().table())
        (allocation, free) = [e for e in Trace(profiler).events if e["name"] == "[memory]"]
        self.assertEqual(allocation["args"]["Bytes"], 4 * 1024**2)
        self.assertEqual(free["args"]["Bytes"], -4 * 1024**2)
        self.assertEqual(allocation["args"]["Device Type"], KIND.value)

    @parametrize("suffix", [".json", ".json.gz", ".raw.json.gz"])
    def test_memory_timeline_is_exported(self, suffix):
        model = torch.nn.Linear(64, 4).to(DEVICE_TYPE)
        with profile_both(profile_memory=True, record_shapes=True, with_stack=True) as profiler:
            model(self.x).sum().backward()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"timeline{suffix}"
            # torch has deprecated the function, without a replacement on other devices.
            with self.assertWarnsRegex(FutureWarning, "export_memory_timeline"):
                profiler.export_memory_timeline(str(path), f"{DEVICE_TYPE}:0")
            data = path.read_bytes()
        timeline = json.loads(gzip.decompress(data) if suffix.endswith("gz") else data)
        self.assertTrue(timeline)
        if suffix != ".raw.json.gz":
            times, sizes = timeline
            self.assertEqual(len(times), len(sizes))
            self.assertGreater(max(sum(row) for row in sizes), 0)

    def test_tensorboard_handler_writes_a_file_per_cycle(self):
        with tempfile.TemporaryDirectory() as folder:
            with profile_both(
                schedule=schedule(wait=0, warmup=1, active=1, repeat=2),
                on_trace_ready=tensorboard_trace_handler(folder, use_gzip=True),
            ) as profiler:
                for _ in range(4):
                    self.x.relu()
                    profiler.step()
            files = sorted(Path(folder).glob("*.pt.trace.json.gz"))
            self.assertEqual(len(files), 2)
            for file in files:
                events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
                self.assertEqual(
                    [e["name"] for e in events if e.get("cat") == "kernel"],
                    [kernel_of("aten::relu")],
                )

    def test_trace_alone_is_written_without_events(self):
        with profile_both(experimental_config=_ExperimentalConfig(trace_only=True)) as profiler:
            self.x.relu()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        self.assertEqual(len(trace.work()), 1)
        with self.assertRaisesRegex(RuntimeError, "trace_only"):
            profiler.events()

    def test_metadata_of_events_is_shown_if_asked_for(self):
        config = _ExperimentalConfig(expose_kineto_event_metadata=True)
        with profile_both(experimental_config=config) as profiler:
            self.x.relu()
        call, kernel = (
            next(e for e in profiler.events() if e.name == name and e.device_type == device_type)
            for name, device_type in (
                ("orLaunchKernel", DeviceType.CPU),
                (kernel_of("aten::relu"), KIND),
            )
        )
        self.assertEqual(kernel.event_metadata.stream, 0)
        self.assertEqual(call.event_metadata.stream, 0)
        # When it was submitted, in nanoseconds since 1970.
        self.assertLess(abs(kernel.event_metadata.queued - time.time_ns()), 60 * 1e9)

    def test_python_s_own_export_writes_the_same_work(self):
        with profile_both() as profiler:
            self.x.relu()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path), use_python_export=True)
            events = json.loads(path.read_text())["traceEvents"]
        self.assertEqual(
            [e["name"] for e in events if e.get("cat") == "kernel"], [kernel_of("aten::relu")]
        )
        self.assertEqual(len([e for e in events if e.get("cat") == "ac2g"]), 2)


class TestSessions(ProfilerTestCase):
    def test_a_second_session_shows_its_own_work(self):
        for function, name in ((torch.relu, "aten::relu"), (torch.neg, "aten::neg")):
            with profile_both() as profiler:
                function(self.x)
            self.assertEqual([operator_of(n) for n in device_names(profiler)], [name])

    def test_schedule_with_repeat_shows_the_active_steps(self):
        seen = []
        with profile_both(
            schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
            on_trace_ready=lambda profiler: seen.append(device_names(profiler)),
        ) as profiler:
            functions = [torch.relu, torch.sin, torch.neg, torch.exp] * 2
            for function in functions:
                function(self.x)
                torch.openreg.synchronize()
                profiler.step()
        one_cycle = ["aten::neg", "aten::exp"]
        self.assertEqual(
            [[operator_of(name) for name in names] for names in seen], [one_cycle, one_cycle]
        )

    def test_steps_are_annotations_of_the_device(self):
        with profile_both(schedule=schedule(wait=0, warmup=1, active=2, repeat=1)) as profiler:
            for _ in range(3):
                self.x.relu()
                profiler.step()
        names = sorted(event["name"] for event in Trace(profiler).of("gpu_user_annotation"))
        self.assertEqual(names, ["ProfilerStep#1", "ProfilerStep#2"])

    def test_events_are_kept_across_cycles_if_asked_for(self):
        with profile_both(
            schedule=schedule(wait=0, warmup=1, active=1, repeat=2), acc_events=True
        ) as profiler:
            for _ in range(4):
                self.x.relu()
                profiler.step()
        self.assertEqual(len(device_names(profiler)), 2)

    def test_an_exception_inside_ends_the_session(self):
        with self.assertRaises(ZeroDivisionError), profile_both() as profiler:
            self.x.relu()
            raise ZeroDivisionError
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])

    def test_a_nested_session_takes_the_trace_and_leaves_the_profiler_usable(self):
        with profile_both() as outer:
            self.x.exp()
            with profile_both() as inner:
                self.x.relu()
        self.assertEqual(device_names(inner), [kernel_of("aten::relu")])
        self.assertEqual(list(outer.events()), [])
        with profile_both() as profiler:
            self.x.relu()
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])

    def test_a_failed_kernel_leaves_the_session_to_be_stopped_again(self):
        values = torch.zeros(4, device=DEVICE_TYPE)
        index = torch.tensor([99], device=DEVICE_TYPE)
        profiler = profile_both()
        profiler.start()
        values.gather(0, index)
        # torch waits for the device before it switches the profiler off.
        with self.assertRaisesRegex(RuntimeError, "aten::gather"):
            profiler.stop()
        profiler.stop()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        self.assertIn("aten::gather", [operator_of(event["name"]) for event in trace.work()])

    def test_a_session_may_run_in_another_thread(self):
        def session():
            with profile_both() as profiler:
                self.x.relu()
            return profiler

        profiler = call_in_thread(session)
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        self.assertEqual(len(trace.work()), 1)

    def test_work_of_threads_without_profiler_is_shown_without_operator(self):
        with profile_both() as profiler:
            call_in_thread(self.x.relu)
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        (kernel,) = trace.work()
        self.assertNotIn("External id", kernel["args"])

    def test_all_threads_can_be_profiled(self):
        config = _ExperimentalConfig(profile_all_threads=True)
        with profile_both(experimental_config=config) as profiler:
            call_in_thread(self.x.relu)
        (kernel,) = Trace(profiler).work()
        self.assertIn("External id", kernel["args"])

    def test_work_submitted_before_the_session_is_not_shown(self):
        side = torch.openreg.Stream()
        with StreamGate(side) as gate:
            with torch.openreg.stream(side):
                self.x.neg()
            with profile_both() as profiler:
                self.x.relu()
                gate.open()
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])

    @requires_two_devices
    def test_work_not_done_when_the_session_ends_is_not_shown(self):
        # torch waits for the current device alone.
        stream = torch.openreg.current_stream(1)
        y = torch.ones(3, device=f"{DEVICE_TYPE}:1")
        with StreamGate(stream), profile_both() as profiler:
            self.x.relu()
            y.neg()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])
        self.assertEqual(len([c for c in trace.calls() if c["name"] == "orLaunchKernel"]), 2)
        with profile_both() as profiler:
            self.x.relu()
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])

    def test_collection_can_be_interrupted(self):
        with profile_both() as profiler:
            torch.openreg.profiler.stop()
            self.x.neg()
            torch.openreg.synchronize()
            with torch.openreg.profiler.profile():
                self.x.relu()
                torch.openreg.synchronize()
            self.x.neg()
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])
        operators = [e.name for e in profiler.events() if e.name in ("aten::neg", "aten::relu")]
        self.assertEqual(operators[0:2], ["aten::neg", "aten::relu"])

    def test_sessions_come_and_go_while_threads_work(self):
        is_over = threading.Event()

        def work():
            stream = torch.openreg.Stream()
            with torch.openreg.stream(stream):
                x = torch.ones(16, device=DEVICE_TYPE, requires_grad=True)
                while not is_over.is_set():
                    (x * 2).sum().backward()
                    x.grad = None
            stream.synchronize()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                with profile_both() as profiler:
                    self.x.relu()
                self.assert_well_formed(Trace(profiler))
                self.assertIn(kernel_of("aten::relu"), device_names(profiler))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()

    def test_torch_s_own_switch_does_not_reach_the_device(self):
        with profile_both() as profiler:
            profiler.toggle_collection_dynamic(False, [ACTIVITY])
            self.x.relu()
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])

    def test_start_and_stop_outside_of_a_session_do_nothing(self):
        torch.openreg.profiler.start()
        torch.openreg.profiler.stop()
        torch.openreg.profiler.start()
        with profile_both() as profiler:
            self.x.relu()
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])


class TestOlderProfiler(ProfilerTestCase):
    def operator(self, profiler, name):
        return next(
            event
            for event in profiler.function_events
            if event.name == name and event.device_type == DeviceType.CPU
        )

    def test_device_time_is_that_between_two_events(self):
        gate = StreamGate()
        with torch.autograd.profiler.profile(use_device=DEVICE_TYPE) as profiler, gate:
            self.x.relu()
            gate.wait_until_reached()
            opened_ns = time.perf_counter_ns()
        ended_ns = time.perf_counter_ns()
        event = self.operator(profiler, "aten::relu")
        self.assertTrue(event.is_legacy)
        # The first event comes after the gate, so that the time before it opened is not in it.
        self.assertGreater(event.device_time_total, 0)
        self.assertLessEqual(event.device_time_total, (ended_ns - opened_ns) / 1000)
        self.assertIn(f"{TITLE} total", profiler.table(sort_by="device_time_total"))

    def test_a_long_kernel_takes_device_time_and_no_host_time(self):
        x = torch.randn(1024, 1024, device=DEVICE_TYPE)
        with torch.autograd.profiler.profile(use_device=DEVICE_TYPE) as profiler:
            x @ x
        self.assertGreater(self.operator(profiler, "aten::mm").device_time_total, 0)

    def test_events_are_those_of_operators_alone(self):
        with torch.autograd.profiler.profile(use_device=DEVICE_TYPE, use_kineto=False) as profiler:
            for _ in range(3):
                self.x.relu()
        names = [event.name for event in profiler.function_events]
        self.assertEqual(names.count("aten::relu"), 3)
        self.assertEqual([name for name in names if not name.startswith("aten::")], [])

    def test_kineto_is_used_if_asked_for(self):
        with torch.autograd.profiler.profile(use_device=DEVICE_TYPE, use_kineto=True) as profiler:
            self.x @ self.x
        kernels = [e for e in profiler.function_events if e.device_type == KIND]
        self.assertEqual([operator_of(kernel.name) for kernel in kernels], ["aten::mm"])
        event = self.operator(profiler, "aten::mm")
        self.assertFalse(event.is_legacy)
        self.assertEqual(event.device_time_total, kernels[0].device_time_total)

    def test_device_only_is_refused_without_kineto(self):
        with self.assertRaisesRegex(AssertionError, "use_kineto=True"):
            torch.autograd.profiler.profile(use_device=DEVICE_TYPE, use_cpu=False)

    def test_a_failed_stream_gives_no_time(self):
        values = torch.zeros(4, device=DEVICE_TYPE)
        index = torch.tensor([99], device=DEVICE_TYPE)
        profiler = torch.autograd.profiler.profile(use_device=DEVICE_TYPE)
        profiler.__enter__()
        values.gather(0, index)
        with self.assertRaisesRegex(RuntimeError, "aten::gather"):
            profiler.__exit__(None, None, None)
        profiler.__exit__(None, None, None)
        # Without the time of aten::to, which gather calls before its kernel fails.
        self.assertEqual(self.operator(profiler, "aten::gather").kernels, [])

    def test_emit_nvtx_says_that_there_is_none(self):
        no_cuda = self.assertRaisesRegex((RuntimeError, AssertionError), "CUDA|NVTX|NVIDIA")
        with no_cuda, torch.autograd.profiler.emit_nvtx():
            self.x.relu()


class TestRanges(ProfilerTestCase):
    def test_ranges_nest(self):
        ranges = torch.openreg.profiler
        self.assertEqual(ranges.range_push("outer"), 0)
        self.assertEqual(ranges.range_push("inner"), 1)
        self.assertEqual(ranges.range_pop(), 1)
        self.assertEqual(ranges.range_pop(), 0)
        with self.assertRaisesRegex(RuntimeError, "no open range"):
            ranges.range_pop()

    def test_a_started_range_ends_once(self):
        number = torch.openreg.profiler.range_start("range")
        call_in_thread(lambda: torch.openreg.profiler.range_end(number))
        with self.assertRaisesRegex(RuntimeError, f"no open range has id {number}"):
            torch.openreg.profiler.range_end(number)

    def test_names_are_texts(self):
        for function in ("range_push", "range_start", "mark"):
            with self.assertRaises(TypeError):
                getattr(torch.openreg.profiler, function)(7)

    def test_a_range_is_a_decorator_too(self):
        @torch.openreg.profiler.range("decorated")
        def function():
            return self.x.relu()

        with torch.openreg.profiler.collect() as activities:
            function()
            function()
        names = [one.name for one in activities if one.kind == "range"]
        self.assertEqual(names, ["decorated", "decorated"])

    def test_a_range_ends_with_an_exception(self):
        with self.assertRaises(ZeroDivisionError), torch.openreg.profiler.range("range"):
            raise ZeroDivisionError
        with self.assertRaisesRegex(RuntimeError, "no open range"):
            torch.openreg.profiler.range_pop()


class TestCollect(ProfilerTestCase):
    def test_activities_are_the_runtime_s_records(self):
        side = torch.openreg.Stream()
        with torch.openreg.profiler.collect() as activities:
            self.x.relu()
            with torch.openreg.stream(side):
                self.x.clone()
            torch.openreg.synchronize()
            self.assertEqual(activities, [])
        by_kind = {
            kind: [one for one in activities if one.kind == kind]
            for kind in ("kernel", "memcpy", "runtime", "synchronize")
        }
        (kernel,), (copy,) = by_kind["kernel"], by_kind["memcpy"]
        self.assertEqual(
            (kernel.name, kernel.device, kernel.stream), (kernel_of("aten::relu"), 0, 0)
        )
        self.assertEqual((copy.name, copy.bytes), ("Memcpy DtoD", 4 * 64 * 64))
        self.assertNotEqual(copy.stream, kernel.stream)
        self.assertLessEqual(kernel.submit_ns, kernel.start_ns)
        self.assertLessEqual(kernel.start_ns, kernel.end_ns)
        self.assertEqual(
            {call.correlation_id for call in by_kind["runtime"]},
            {kernel.correlation_id, copy.correlation_id},
        )
        self.assertEqual(
            {call.thread_id for call in by_kind["runtime"]}, {threading.get_native_id()}
        )
        (wait,) = by_kind["synchronize"]
        self.assertIsNone(wait.stream)
        self.assertIn(repr(kernel_of("aten::relu")), repr(kernel))

    def test_every_operator_becomes_a_range(self):
        emitting = torch.openreg.profiler.emit_ranges(record_shapes=True)
        with torch.openreg.profiler.collect() as activities, emitting:
            self.x @ self.x
        names = [one.name for one in activities if one.kind == "range"]
        self.assertEqual([name.split(",")[0] for name in names][-1], "aten::matmul")
        self.assertIn("sizes = [[64, 64], [64, 64]]", names[-1])

    def test_every_autograd_operation_becomes_a_range(self):
        weight = torch.ones(64, 64, device=DEVICE_TYPE, requires_grad=True)
        with torch.openreg.profiler.collect() as activities:
            with torch.openreg.profiler.emit_openreg(record_shapes=True):
                (self.x @ weight).sum().backward()
            self.x.relu()
        ranges = [one for one in activities if one.kind == "range"]
        names = [one.name for one in ranges]
        for name in ("aten::matmul", "aten::sum", "MmBackward0", "SumBackward0"):
            self.assertTrue(any(one.startswith(f"{name}, seq = ") for one in names), name)
        self.assertFalse(any("relu" in one for one in names))
        (forward,) = (one for one in names if one.startswith("aten::mm, seq = "))
        self.assertIn("sizes = [[64, 64], [64, 64]]", forward)
        # Backward ran on autograd's thread.
        (backward,) = (one for one in ranges if one.name.startswith("MmBackward0"))
        self.assertNotEqual(backward.thread_id, threading.get_native_id())
        # A node of backward has the number of the operator that made it.
        number = re.search(r"seq = (\d+)", forward)[1]
        self.assertIn(f"seq = {number}", backward.name)

    def test_emit_waits_for_the_device_at_both_ends(self):
        with torch.openreg.profiler.collect() as activities:
            self.x.neg()
            with torch.openreg.profiler.emit_openreg():
                self.x.relu()
        waits = [one for one in activities if one.kind == "synchronize"]
        end_of = {one.name: one.end_ns for one in activities if one.kind == "kernel"}
        (first,) = (one.start_ns for one in activities if one.name.startswith("aten::relu, "))
        self.assertEqual(len(waits), 2)
        self.assertTrue(end_of[kernel_of("aten::neg")] <= waits[0].end_ns <= first)
        self.assertLessEqual(end_of[kernel_of("aten::relu")], waits[1].end_ns)

    def test_emit_that_is_not_enabled_does_nothing(self):
        emitting = torch.openreg.profiler.emit_openreg(enabled=False)
        with torch.openreg.profiler.collect() as activities, emitting:
            self.x.relu()
        self.assertEqual([one.name for one in activities if one.kind == "range"], [])

    def test_emit_cannot_be_entered_again(self):
        emitting = torch.openreg.profiler.emit_openreg()
        with emitting, self.assertRaisesRegex(RuntimeError, "this context was entered before"):
            emitting.__enter__()
        with self.assertRaisesRegex(RuntimeError, "this context was entered before"), emitting:
            pass

    def test_emit_is_refused_where_the_thread_has_a_profiler(self):
        with (
            profile_both(),
            self.assertRaisesRegex(RuntimeError, "a profiler is already active on this thread"),
        ):
            torch.openreg.profiler.emit_openreg().__enter__()
        self.assertFalse(torch.autograd.profiler._is_profiler_enabled)

    def test_a_thread_has_one_profiler(self):
        with profile_both() as profiler:
            with self.assertRaisesRegex(
                RuntimeError, "a profiler is already active on this thread"
            ):
                torch.openreg.profiler.emit_ranges().__enter__()
            with self.assertRaisesRegex(
                RuntimeError, "expected no running profiler session, got one"
            ):
                torch.openreg.profiler.collect().__enter__()
            self.x.relu()
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])

    def test_a_session_inside_takes_the_trace(self):
        taken = self.assertRaisesRegex(RuntimeError, "torch.profiler took over the trace")
        with taken, torch.openreg.profiler.collect(), profile_both() as profiler:
            self.x.relu()
        self.assertEqual(device_names(profiler), [kernel_of("aten::relu")])

    def test_collection_can_be_interrupted(self):
        with torch.openreg.profiler.collect() as activities:
            torch.openreg.profiler.stop()
            self.x.neg()
            torch.openreg.synchronize()
            torch.openreg.profiler.start()
            self.x.relu()
            torch.openreg.synchronize()
        names = [one.name for one in activities if one.kind == "kernel"]
        self.assertEqual(names, [kernel_of("aten::relu")])


class TestTiming(ProfilerTestCase):
    def test_events_take_the_time_when_the_stream_reaches_them(self):
        start, end = (torch.openreg.Event(enable_timing=True) for _ in range(2))
        with StreamGate() as gate:
            start.record()  # before the stream reaches it: the gate is closed
            self.x.relu()
            end.record()
            gate.wait_until_reached()
            held = time.perf_counter_ns()
            with torch.openreg.profiler.collect() as activities:
                gate.open()
                torch.openreg.synchronize()
            opened_ms = (time.perf_counter_ns() - held) / 1e6
        # Neither contains the time that the gate was closed.
        self.assertLessEqual(start.elapsed_time(end), opened_ms)
        self.assertGreaterEqual(start.elapsed_time(end), 0)
        self.assertFalse([one for one in activities if one.kind == "kernel"])

    def test_time_between_two_records_contains_what_held_the_stream(self):
        start, end = (torch.openreg.Event(enable_timing=True) for _ in range(2))
        start.record()
        start.synchronize()
        with StreamGate() as gate:
            end.record()
            gate.wait_until_reached()
            reached = time.perf_counter_ns()
            held_ms = (time.perf_counter_ns() - reached) / 1e6
            gate.open()
        torch.openreg.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), held_ms)


class TestProcesses(OpenRegTestCase):
    PROLOGUE = """
        import torch
        from torch.profiler import ProfilerActivity, profile
        x = torch.ones(3, device="openreg")
        profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1])
        def names():
            return [e.name for e in profiler.events()
                    if e.device_type == torch.autograd.DeviceType.PrivateUse1]
    """.replace("PrivateUse1", _NAME)

    def run_with_prologue(self, code, settings=None):
        lines = [*textwrap.dedent(self.PROLOGUE).splitlines(), *textwrap.dedent(code).splitlines()]
        return run_child("\n".join(lines), settings)

    @parametrize("settings", [{}, {"OPENREG_DEVICE_COUNT": "0"}])
    def test_a_program_for_the_cpu_uses_no_device(self, settings):
        run_child(
            """
            import torch
            with torch.profiler.profile() as profiler:
                torch.ones(3).relu()
            assert "aten::relu" in [event.name for event in profiler.events()]
            assert not torch.openreg.is_initialized()
            """,
            settings,
        )

    def test_the_first_profile_of_a_process_shows_calls_without_the_device_s_activity(self):
        run_child(
            f"""
            import torch
            from torch.profiler import ProfilerActivity, profile
            x = torch.ones(3, device="{DEVICE_TYPE}")
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                x.relu()
            names = [event.name for event in profiler.events()]
            assert "orLaunchKernel" in names, names
            """
        )

    def test_a_process_may_end_while_it_profiles(self):
        output = self.run_with_prologue("""
            profiler.start()
            x.relu()
            print("end")
        """)
        self.assertIn("end", output)

    @pytest.mark.slow
    def test_a_process_may_end_with_work_pending_while_it_profiles(self):
        output = self.run_with_prologue("""
            from torch_openreg.testing import StreamGate
            profiler.start()
            gate = StreamGate()
            gate.__enter__()
            x.relu()
            print("end")
        """)
        self.assertIn("end", output)

    def test_a_fork_inside_a_session_harms_neither_process(self):
        output = self.run_with_prologue("""
            import os
            profiler.start()
            x.relu()
            pid = os.fork()
            if pid == 0:
                torch.ones(3).relu()
                os._exit(0)  # Kineto's destructors would wait for a thread of the parent
            print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            x.neg()
            profiler.stop()
            print(names())
        """)
        self.assertIn("child 0", output)
        self.assertIn(str([kernel_of("aten::relu"), kernel_of("aten::neg")]), output)

    def test_the_cpu_can_be_profiled_in_a_forked_child(self):
        output = self.run_with_prologue("""
            import os
            torch.openreg.synchronize()
            pid = os.fork()
            if pid == 0:
                with profile(activities=[ProfilerActivity.CPU]) as child:
                    torch.ones(3).add(1)
                print([e.name for e in child.events()], flush=True)
                os._exit(0)
            print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """)
        self.assertIn("aten::add", output)
        self.assertIn("child 0", output)

    def test_a_device_that_was_never_used_can_be_profiled(self):
        output = run_child(f"""
            import torch
            from torch.profiler import ProfilerActivity, profile
            with profile(activities=[ProfilerActivity.{_NAME}]) as profiler:
                torch.ones(3)
            print(torch.openreg.is_initialized(), len(profiler.events()))
        """)
        self.assertIn("0", output)

    def test_blocking_mode_shows_the_same_kernels(self):
        output = self.run_with_prologue(
            """
            y = torch.empty(3, device="openreg")
            with profiler:
                y.copy_(x.relu())
            print(names())
            """,
            {"OPENREG_LAUNCH_BLOCKING": "1"},
        )
        self.assertIn(str([kernel_of("aten::relu"), "Memcpy DtoD"]), output)


instantiate_parametrized_tests(TestActivities)
instantiate_parametrized_tests(TestCopies)
instantiate_parametrized_tests(TestResults)
instantiate_parametrized_tests(TestProcesses)

if __name__ == "__main__":
    run_tests()
