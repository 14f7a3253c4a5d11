"""Streams: the current stream, waits, and pools."""

import threading

import torch
from common import (
    A_DEVICE,
    DEVICE_COUNT,
    DEVICE_TYPE,
    INDEX_ERROR,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    StreamGate,
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
    subtest,
)

from torch_openreg import _C

LAST = DEVICE_COUNT - 1
NOT_STREAMS = [
    subtest(5, name="int"),
    subtest(f"{DEVICE_TYPE}:0", name="string"),
    subtest(object(), name="object"),
]
# Streams behave alike on every device and of whatever origin.
STREAMS = parametrize(
    "device,origin",
    [
        subtest((device, origin), name=f"device{device}_{origin}")
        for device in sorted({0, LAST})
        for origin in ("default", "pool", "high_priority_pool")
    ],
)


def make_stream(device, origin):
    if origin == "default":
        return torch.openreg.default_stream(device)
    return torch.openreg.Stream(device, priority=0 if origin == "pool" else -1)


class TestStream(OpenRegTestCase):
    @STREAMS
    def test_stream_is_on_the_device_asked_for(self, device, origin):
        stream = make_stream(device, origin)
        self.assertEqual(stream.device, torch.device(DEVICE_TYPE, device))
        self.assertEqual(stream.device_index, device)

    @STREAMS
    def test_stream_is_a_torch_stream(self, device, origin):
        stream = make_stream(device, origin)
        self.assertIsInstance(stream, torch.Stream)
        self.assertIsInstance(stream, torch.openreg.Stream)
        self.assertNotEqual(stream.native_handle, 0)

    @STREAMS
    def test_idle_stream_is_done(self, device, origin):
        stream = make_stream(device, origin)
        stream.synchronize()
        self.assertTrue(stream.query())

    @STREAMS
    def test_stream_is_not_done_before_its_work_is(self, device, origin):
        stream = make_stream(device, origin)
        with StreamGate(stream) as gate:
            self.assertFalse(stream.query())
            gate.open()
            stream.synchronize()
            self.assertTrue(stream.query())

    @STREAMS
    def test_with_selects_stream_and_device_and_restores_both(self, device, origin):
        stream = make_stream(device, origin)
        before = torch.openreg.current_stream()
        with stream as entered:
            self.assertIs(entered, stream)
            self.assertEqual(torch.openreg.current_stream(), stream)
            self.assertEqual(torch.openreg.current_device(), device)
        self.assertEqual(torch.openreg.current_device(), 0)
        self.assertEqual(torch.openreg.current_stream(), before)

    @STREAMS
    def test_work_runs_on_the_selected_stream(self, device, origin):
        stream = make_stream(device, origin)
        x = torch.ones(3, device=f"{DEVICE_TYPE}:{device}")
        torch.openreg.synchronize(device)
        with torch.openreg.stream(stream), StreamGate() as gate:
            y = x + 1
            self.assertFalse(stream.query())
            gate.open()
            self.assert_bit_equal(y, torch.full((3,), 2.0))

    def test_default_device_is_the_current_one(self):
        with torch.openreg.device(LAST):
            self.assertEqual(torch.openreg.Stream().device_index, LAST)
            self.assertEqual(torch.openreg.Stream(-1).device_index, LAST)
            self.assertEqual(torch.openreg.current_stream().device_index, LAST)
            self.assertEqual(torch.openreg.default_stream(-1).device_index, LAST)

    @parametrize(
        "function",
        [torch.openreg.Stream, torch.openreg.current_stream, torch.openreg.default_stream],
    )
    def test_bad_device_is_refused_by(self, function):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            function(DEVICE_COUNT)
        with self.assertRaisesRegex(ValueError, f"expected {A_DEVICE}, got cpu"):
            function("cpu")
        with self.assertRaisesRegex(TypeError, "expected an int, a string, a torch.device"):
            function(1.5)

    def test_equal_streams_have_equal_hashes(self):
        one, other = torch.openreg.current_stream(), torch.openreg.default_stream()
        self.assertIsNot(one, other)
        self.assertEqual(one, other)
        self.assertEqual(hash(one), hash(other))
        self.assertEqual(len({one, other, torch.openreg.Stream()}), 2)

    def test_stream_equals_the_same_stream_as_torch_stream(self):
        ours, theirs = torch.openreg.current_stream(), torch.accelerator.current_stream()
        self.assertTrue(ours == theirs)
        self.assertTrue(theirs == ours)
        self.assertEqual(hash(ours), hash(theirs))

    def test_stream_differs_from_other_streams_and_objects(self):
        stream = torch.openreg.Stream()
        for other in (torch.openreg.Stream(), torch.openreg.default_stream(), None, 5, "stream"):
            self.assertFalse(stream == other)
            self.assertTrue(stream != other)

    @requires_two_devices
    def test_default_streams_of_two_devices_differ(self):
        self.assertNotEqual(torch.openreg.default_stream(0), torch.openreg.default_stream(1))

    def test_stream_is_made_again_from_its_three_parts(self):
        stream = torch.openreg.Stream(LAST)
        self.assertEqual(
            stream,
            torch.openreg.Stream(
                stream_id=stream.stream_id,
                device_index=stream.device_index,
                device_type=stream.device_type,
            ),
        )

    def test_repr_names_device_and_stream(self):
        self.assertRegex(
            repr(torch.openreg.Stream(0)),
            rf"<torch\.openreg\.Stream device={DEVICE_TYPE}:0 stream_id=[0-9]+>",
        )

    def test_stream_has_one_number_everywhere(self):
        for index in {0, LAST}:
            for stream in (torch.openreg.default_stream(index), torch.openreg.Stream(index)):
                number = stream.stream_id
                memory = torch.ones(8, device=stream.device)
                torch.openreg.synchronize(index)
                with stream, torch.openreg.profiler.collect() as activities:
                    memory.relu()
                    stream.synchronize()
                kernels = [one for one in activities if one.kind == "kernel"]
                self.assertEqual([(one.device, one.stream) for one in kernels], [(index, number)])
                with stream, torch.openreg.sanitizer.check(action="collect"):
                    memory.add_(1)
                    with torch.openreg.stream(torch.openreg.Stream(index, priority=-1)):
                        memory.add_(1)
                    torch.openreg.synchronize()
                    (finding,) = torch.openreg.sanitizer.findings()
                torch.openreg.sanitizer.clear()
                self.assertEqual(finding.accesses[1].stream, number)
                with stream:
                    memory[torch.tensor([99], device=stream.device)]
                with self.assertRaisesRegex(
                    INDEX_ERROR, f" on stream {number} of device {index} failed"
                ):
                    stream.synchronize()
                self.assertIn(f" stream_id={number}>", repr(stream))

    @requires_two_devices
    def test_first_streams_of_two_devices_have_the_same_numbers(self):
        program = """
import torch
for device in (0, 1):
    with torch.accelerator.device_index(device):
        streams = [torch.accelerator.current_stream(), *(torch.Stream() for _ in range(32))]
        streams += [torch.Stream(priority=-1) for _ in range(32)]
    print([one.stream_id for one in streams] == [*range(65)])
"""
        self.assertEqual(run_program(program).stdout.split(), ["True", "True"])

    def test_pool_gives_32_different_streams_and_then_shares(self):
        streams = [torch.openreg.Stream(0) for _ in range(64)]
        self.assertEqual(len(set(streams)), 32)
        self.assertEqual(streams[:32], streams[32:])

    def test_pools_of_different_priority_share_no_stream(self):
        normal = {torch.openreg.Stream(0) for _ in range(32)}
        high = {torch.openreg.Stream(0, priority=-1) for _ in range(32)}
        self.assertEqual(normal & high, set())

    def test_priority_is_the_one_asked_for(self):
        least, greatest = torch.openreg.Stream.priority_range()
        self.assertGreater(least, greatest)
        for priority in (least, greatest):
            self.assertEqual(torch.openreg.Stream(0, priority).priority, priority)
        self.assertEqual(torch.openreg.Stream(0).priority, 0)
        self.assertEqual(torch.openreg.default_stream().priority, 0)

    def test_priority_outside_the_range_is_the_nearest_inside(self):
        least, greatest = torch.openreg.Stream.priority_range()
        self.assertEqual(torch.openreg.Stream(0, 100).priority, least)
        self.assertEqual(torch.openreg.Stream(0, -100).priority, greatest)

    def test_torch_stream_takes_a_priority(self):
        self.assertEqual(_C._stream_priority(*parts(torch.Stream(DEVICE_TYPE, priority=-1))), -1)

    def test_current_stream_is_the_default_one_in_a_new_thread(self):
        with torch.openreg.Stream(0):
            self.assertEqual(
                call_in_thread(torch.openreg.current_stream), torch.openreg.default_stream(0)
            )

    @requires_two_devices
    def test_each_device_has_its_current_stream(self):
        stream = torch.openreg.Stream(1)
        with stream:
            self.assertEqual(torch.openreg.current_stream(1), stream)
            self.assertEqual(torch.openreg.current_stream(0), torch.openreg.default_stream(0))

    def test_no_stream_is_capturing(self):
        self.assertFalse(torch.openreg.is_current_stream_capturing())
        self.assertFalse(torch.openreg.Stream().is_capturing())


def parts(stream):
    return stream.stream_id, stream.device_index, stream.device_type


class TestStreamContext(OpenRegTestCase):
    def test_contexts_nest(self):
        outer, inner = torch.openreg.Stream(0), torch.openreg.Stream(LAST)
        with torch.openreg.stream(outer):
            with torch.openreg.stream(inner):
                self.assertEqual(torch.openreg.current_stream(), inner)
            self.assertEqual(torch.openreg.current_stream(), outer)

    def test_context_can_be_entered_again(self):
        stream = torch.openreg.Stream(LAST)
        context = torch.openreg.stream(stream)
        for _ in range(2):
            with context:
                self.assertEqual(torch.openreg.current_stream(), stream)
            self.assertEqual(torch.openreg.current_stream(), torch.openreg.default_stream())

    def test_stream_and_context_can_be_entered_while_they_are_entered(self):
        stream, other = torch.openreg.Stream(LAST), torch.openreg.Stream(0)
        for context in (stream, torch.openreg.stream(stream)):
            with context:
                with torch.openreg.stream(other):
                    with context:
                        self.assertEqual(torch.openreg.current_stream(), stream)
                    self.assertEqual(torch.openreg.current_stream(), other)
                self.assertEqual(torch.openreg.current_stream(), stream)
            self.assertEqual(torch.openreg.current_stream(), torch.openreg.default_stream())

    def test_context_restores_after_an_exception(self):
        with self.assertRaises(KeyError), torch.openreg.stream(torch.openreg.Stream(LAST)):
            raise KeyError
        self.assertEqual(torch.openreg.current_device(), 0)
        self.assertEqual(torch.openreg.current_stream(), torch.openreg.default_stream(0))

    @requires_two_devices
    def test_context_restores_the_streams_of_both_devices(self):
        on_1 = torch.openreg.Stream(1)
        with torch.openreg.stream(on_1):
            torch.openreg.set_stream(torch.openreg.Stream(0))
        self.assertEqual(torch.openreg.current_stream(0), torch.openreg.default_stream(0))
        self.assertEqual(torch.openreg.current_stream(1), torch.openreg.default_stream(1))

    def test_context_with_none_changes_nothing(self):
        stream = torch.openreg.Stream(0)
        with stream, torch.openreg.stream(None):
            self.assertEqual(torch.openreg.current_stream(), stream)

    def test_context_takes_a_torch_stream(self):
        stream = torch.Stream(DEVICE_TYPE)
        with torch.openreg.stream(stream):
            self.assertEqual(torch.openreg.current_stream(), stream)

    def test_context_of_torch_and_ours_are_one(self):
        stream = torch.Stream(f"{DEVICE_TYPE}:{LAST}")
        with stream:
            self.assertEqual(torch.openreg.current_stream(), stream)
        self.assertEqual(torch.openreg.current_stream(), torch.openreg.default_stream(0))

    @parametrize("stream", NOT_STREAMS)
    def test_context_refuses(self, stream):
        with (
            self.assertRaisesRegex(TypeError, f"torch.{DEVICE_TYPE}.stream: expected a stream"),
            torch.openreg.stream(stream),
        ):
            self.fail("the context was entered")

    def test_set_stream_selects_the_device_too(self):
        stream = torch.openreg.Stream(LAST)
        torch.openreg.set_stream(stream)
        try:
            self.assertEqual(torch.openreg.current_device(), LAST)
            self.assertEqual(torch.openreg.current_stream(), stream)
        finally:
            torch.openreg.set_stream(torch.openreg.default_stream(LAST))
            torch.openreg.set_device(0)

    def test_set_stream_with_none_changes_nothing(self):
        torch.openreg.set_stream(None)
        self.assertEqual(torch.openreg.current_stream(), torch.openreg.default_stream())

    @parametrize("stream", NOT_STREAMS)
    def test_set_stream_refuses(self, stream):
        with self.assertRaisesRegex(
            TypeError, f"torch.{DEVICE_TYPE}.set_stream: expected a stream"
        ):
            torch.openreg.set_stream(stream)

    def test_stream_of_another_kind_of_device_is_refused(self):
        foreign = torch.Stream(stream_id=0, device_index=0, device_type=12)  # XPU
        with self.assertRaisesRegex(ValueError, f"expected a stream of {A_DEVICE}"):
            torch.openreg.set_stream(foreign)

    def test_id_that_names_no_stream_is_refused(self):
        kind = torch.openreg.current_stream().device_type
        for stream_id in (2**40, 8 * 1000 + 1, -8):
            with self.assertRaises(RuntimeError):
                torch.openreg._set_stream_by_id(stream_id, 0, kind)


class TestStreamOrder(OpenRegTestCase):
    @STREAMS
    def test_wait_stream_holds_later_work(self, device, origin):
        stream, waiting = make_stream(device, origin), torch.openreg.Stream(0)
        with StreamGate(stream) as gate:
            waiting.wait_stream(stream)
            self.assertFalse(waiting.query())
            gate.open()
            waiting.synchronize()

    def test_wait_stream_does_not_wait_for_work_submitted_afterwards(self):
        stream, waiting = torch.openreg.Stream(0), torch.openreg.Stream(0)
        waiting.wait_stream(stream)
        with StreamGate(stream):
            waiting.synchronize()
            self.assertFalse(stream.query())

    def test_wait_event_holds_later_work(self):
        stream, waiting = torch.openreg.Stream(0), torch.openreg.Stream(LAST)
        with StreamGate(stream) as gate:
            waiting.wait_event(stream.record_event())
            self.assertFalse(waiting.query())
            gate.open()
            waiting.synchronize()

    def test_record_event_makes_an_event_or_takes_one(self):
        stream = torch.openreg.Stream(0)
        self.assertIsInstance(stream.record_event(), torch.openreg.Event)
        for event in (torch.openreg.Event(), torch.Event(DEVICE_TYPE)):
            self.assertIs(stream.record_event(event), event)

    @parametrize("argument", NOT_STREAMS)
    def test_waits_and_records_refuse(self, argument):
        stream = torch.openreg.Stream(0)
        for function in (stream.wait_stream, stream.wait_event, stream.record_event):
            with self.assertRaisesRegex(TypeError, "expected a|expected an"):
                function(argument)

    def test_synchronize_lets_other_threads_run(self):
        stream = torch.openreg.Stream(0)
        with StreamGate(stream) as gate:
            # Were the GIL held, the thread that opens the gate would never run.
            opener = start_thread(gate.open)
            stream.synchronize()
            opener.join()

    def test_device_synchronize_lets_other_threads_run(self):
        with StreamGate(torch.openreg.Stream(0)) as gate:
            opener = start_thread(gate.open)
            torch.openreg.synchronize()
            opener.join()

    def test_device_synchronize_waits_for_all_streams_of_the_device(self):
        streams = [torch.openreg.Stream(0) for _ in range(4)]
        x = torch.ones(8, device=f"{DEVICE_TYPE}:0")
        for stream in streams:
            stream.wait_stream(torch.openreg.current_stream())
            with stream:
                x + 1
            x.record_stream(stream)
        torch.openreg.synchronize(0)
        self.assertTrue(all(stream.query() for stream in streams))

    @requires_two_devices
    def test_device_synchronize_does_not_wait_for_other_devices(self):
        with StreamGate(torch.openreg.Stream(1)):
            torch.openreg.synchronize(0)

    def test_fork_and_join_gives_the_result_of_one_stream(self):
        x = torch.arange(1000, dtype=torch.float32)
        y = x.to(DEVICE_TYPE)
        main, side = torch.openreg.current_stream(), torch.openreg.Stream()
        side.wait_stream(main)
        with side:
            z = y * 3
        y = y + 1
        main.wait_stream(side)
        z.record_stream(main)
        self.assert_bit_equal(y + z, (x + 1) + x * 3)

    def test_sleep_is_work_of_the_current_stream(self):
        side = torch.openreg.Stream()
        start, end = (torch.openreg.Event(enable_timing=True) for _ in range(2))
        with side:
            start.record()
            torch.openreg._sleep(50_000_000)
            self.assertFalse(side.query())
            end.record()
        self.assertTrue(torch.openreg.default_stream().query())
        end.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), 50.0)


class TestExternalStream(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.handle = _C._create_external_stream(0, LAST)
        self.addCleanup(_C._destroy_external_stream, self.handle)

    def test_external_stream_runs_work(self):
        stream = torch.openreg.ExternalStream(self.handle, LAST)
        self.assertIsInstance(stream, torch.openreg.Stream)
        self.assertEqual(stream.native_handle, self.handle)
        self.assertEqual(stream.device_index, LAST)
        x = torch.ones(3, device=f"{DEVICE_TYPE}:{LAST}")
        stream.wait_stream(torch.openreg.current_stream(LAST))
        with StreamGate(stream) as gate, stream:
            y = x + 1
            self.assertFalse(stream.query())
            gate.open()
            stream.synchronize()
        self.assert_bit_equal(y, torch.full((3,), 2.0))

    def test_get_stream_from_external_gives_an_equal_stream(self):
        self.assertEqual(
            torch.openreg.get_stream_from_external(self.handle, LAST),
            torch.openreg.ExternalStream(self.handle, LAST),
        )

    @requires_two_devices
    def test_wrong_device_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "expected a stream of device 0"):
            torch.openreg.ExternalStream(self.handle, 0)

    def test_number_that_is_no_handle_is_refused(self):
        for number in (0, 3, 4096):
            with self.assertRaises(RuntimeError):
                torch.openreg.ExternalStream(number, 0)

    def test_handle_of_a_destroyed_stream_is_refused(self):
        handle = _C._create_external_stream(0, 0)
        _C._destroy_external_stream(handle)
        with self.assertRaises(RuntimeError):
            torch.openreg.ExternalStream(handle, 0)


def start_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


instantiate_parametrized_tests(TestStream)
instantiate_parametrized_tests(TestStreamContext)
instantiate_parametrized_tests(TestStreamOrder)

if __name__ == "__main__":
    run_tests()
