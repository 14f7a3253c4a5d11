"""Events: records, waits, and elapsed time."""

import threading
import time

import torch
from common import (
    A_DEVICE,
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)

LAST = DEVICE_COUNT - 1
# torch.Event and torch.openreg.Event have to behave alike.
EVENTS = parametrize(
    "make_event",
    [
        subtest(torch.openreg.Event, name="openreg_event"),
        subtest(lambda **options: torch.Event(DEVICE_TYPE, **options), name="torch_event"),
    ],
)


def make_streams(count, device=0):
    return [torch.openreg.Stream(device) for _ in range(count)]


class TestEvent(OpenRegTestCase):
    @EVENTS
    def test_event_never_recorded_is_done(self, make_event):
        event = make_event()
        self.assertTrue(event.query())
        event.synchronize()

    @EVENTS
    def test_event_never_recorded_holds_nothing(self, make_event):
        (stream,) = make_streams(1)
        make_event().wait(stream)
        stream.synchronize()

    @EVENTS
    def test_wait_before_the_first_record_does_not_wait_for_it(self, make_event):
        event = make_event()
        recording, waiting = make_streams(2)
        event.wait(waiting)
        with StreamGate(recording):
            event.record(recording)
            waiting.synchronize()
            self.assertFalse(event.query())

    @EVENTS
    def test_event_is_done_when_the_work_before_it_is(self, make_event):
        event = make_event()
        (stream,) = make_streams(1)
        with StreamGate(stream) as gate:
            event.record(stream)
            self.assertFalse(event.query())
            gate.open()
            event.synchronize()
            self.assertTrue(event.query())

    @EVENTS
    def test_synchronize_does_not_wait_for_work_after_the_event(self, make_event):
        event = make_event()
        (stream,) = make_streams(1)
        event.record(stream)
        with StreamGate(stream):
            event.synchronize()
            self.assertFalse(stream.query())

    @EVENTS
    def test_record_again_leaves_an_earlier_wait_at_the_first_record(self, make_event):
        event = make_event()
        first, second, waiting = make_streams(3)
        with StreamGate(first) as first_gate, StreamGate(second):
            event.record(first)
            event.wait(waiting)
            event.record(second)
            self.assertFalse(waiting.query())
            first_gate.open()
            waiting.synchronize()
            self.assertFalse(event.query())

    @EVENTS
    def test_record_again_makes_a_later_wait_wait_for_the_last_record(self, make_event):
        event = make_event()
        first, second, waiting = make_streams(3)
        with StreamGate(first), StreamGate(second) as second_gate:
            event.record(first)
            event.record(second)
            event.wait(waiting)
            self.assertFalse(waiting.query())
            second_gate.open()
            waiting.synchronize()
            self.assertTrue(event.query())
            self.assertFalse(first.query())

    @EVENTS
    def test_record_again_on_the_same_stream_holds_the_event_again(self, make_event):
        event = make_event()
        (stream,) = make_streams(1)
        event.record(stream)
        event.synchronize()
        with StreamGate(stream) as gate:
            event.record(stream)
            self.assertFalse(event.query())
            gate.open()
            event.synchronize()

    @EVENTS
    def test_stream_may_wait_for_its_own_event(self, make_event):
        event = make_event()
        (stream,) = make_streams(1)
        event.record(stream)
        event.wait(stream)
        stream.synchronize()

    @EVENTS
    def test_wait_outlives_the_event(self, make_event):
        recording, waiting = make_streams(2)
        with StreamGate(recording) as gate:
            event = make_event()
            event.record(recording)
            event.wait(waiting)
            del event
            self.assertFalse(waiting.query())
            gate.open()
            waiting.synchronize()

    @EVENTS
    @requires_two_devices
    def test_stream_of_another_device_can_wait(self, make_event):
        event = make_event()
        (recording,), (waiting,) = make_streams(1, 0), make_streams(1, 1)
        with StreamGate(recording) as gate:
            event.record(recording)
            event.wait(waiting)
            self.assertFalse(waiting.query())
            gate.open()
            waiting.synchronize()

    @EVENTS
    @requires_two_devices
    def test_event_is_bound_to_the_device_of_its_first_record(self, make_event):
        event = make_event()
        event.record(torch.openreg.Stream(1))
        self.assertEqual(event.device, torch.device(f"{DEVICE_TYPE}:1"))
        with self.assertRaisesRegex(RuntimeError, "device"):
            event.record(torch.openreg.Stream(0))

    @EVENTS
    def test_record_and_wait_take_the_current_stream(self, make_event):
        recording, waiting = make_streams(2)
        event = make_event()
        with StreamGate(recording) as gate:
            with recording:
                event.record()
            self.assertFalse(event.query())
            with waiting:
                event.wait()
            self.assertFalse(waiting.query())
            self.assertTrue(torch.openreg.default_stream().query())
            gate.open()
            waiting.synchronize()

    @requires_two_devices
    def test_record_takes_the_current_device(self):
        event = torch.openreg.Event()
        with torch.openreg.device(1):
            event.record()
        self.assertEqual(event.device, torch.device(f"{DEVICE_TYPE}:1"))

    @EVENTS
    def test_event_recorded_in_one_thread_holds_in_another(self, make_event):
        event = make_event()
        recording, waiting = make_streams(2)
        with StreamGate(recording) as gate:
            event.record(recording)
            call_in_thread(lambda: event.wait(waiting))
            self.assertFalse(waiting.query())
            gate.open()
            waiting.synchronize()

    def test_synchronize_lets_other_threads_run(self):
        event = torch.openreg.Event()
        (stream,) = make_streams(1)
        with StreamGate(stream) as gate:
            event.record(stream)
            # Were the GIL held, the thread that opens the gate would never run.
            opener = threading.Thread(target=gate.open)
            opener.start()
            event.synchronize()
            opener.join()

    def test_event_is_a_torch_event(self):
        self.assertIsInstance(torch.openreg.Event(), torch.Event)

    def test_options_are_accepted_by_place_and_by_name(self):
        torch.openreg.Event(True, True, False)
        torch.openreg.Event(enable_timing=True, blocking=True, interprocess=False)

    def test_repr_tells_whether_the_event_was_recorded(self):
        event = torch.openreg.Event()
        self.assertEqual(repr(event), "<torch.openreg.Event uninitialized>")
        event.record()
        self.assertRegex(
            repr(event), rf"<torch\.openreg\.Event device={DEVICE_TYPE}:0 event_id=0x[0-9a-f]+>"
        )

    @parametrize("argument", [subtest(5, name="int"), subtest(DEVICE_TYPE, name="string")])
    def test_functions_refuse(self, argument):
        event = torch.openreg.Event(enable_timing=True)
        for function in (event.record, event.wait, event.elapsed_time):
            with self.assertRaisesRegex(TypeError, "expected a stream|expected an event"):
                function(argument)

    def test_stream_of_another_kind_of_device_is_refused(self):
        foreign = torch.Stream(stream_id=0, device_index=0, device_type=12)  # XPU
        for function in (torch.openreg.Event().record, torch.openreg.Event().wait):
            with self.assertRaisesRegex(ValueError, f"expected a stream of {A_DEVICE}"):
                function(foreign)


class TestEventTiming(OpenRegTestCase):
    def record(self, count, stream=None, **options):
        events = [torch.openreg.Event(enable_timing=True, **options) for _ in range(count)]
        for event in events:
            event.record(stream)
        events[-1].synchronize()
        return events

    def test_time_from_an_event_to_a_later_one_is_not_negative(self):
        start, end = self.record(2)
        self.assertGreaterEqual(start.elapsed_time(end), 0)

    def test_time_to_an_earlier_event_is_not_positive(self):
        start, end = self.record(2)
        self.assertEqual(end.elapsed_time(start), -start.elapsed_time(end))

    def test_time_needs_timing_and_records_and_says_so_in_torch_s_words(self):
        (start,) = self.record(1)
        for other, text in (
            (
                torch.openreg.Event(),
                "Both events must be created with argument 'enable_timing=True'.",
            ),
            (
                torch.openreg.Event(enable_timing=True),
                "Both events must be recorded before calculating elapsed time.",
            ),
        ):
            for first, second in ((start, other), (other, start)):
                with self.assertRaisesRegex(ValueError, f"^{text}"):
                    first.elapsed_time(second)

    def test_time_of_events_that_are_not_done_is_torch_s_runtime_error(self):
        (start,) = self.record(1)
        end = torch.openreg.Event(enable_timing=True)
        with StreamGate():
            end.record()
            for first, second in ((start, end), (end, start)):
                with self.assertRaises(RuntimeError) as caught:
                    first.elapsed_time(second)
                self.assertEqual(
                    str(caught.exception),
                    "Both events must be completed before calculating elapsed time.",
                )

    @requires_two_devices
    def test_events_of_two_devices_are_refused(self):
        (start,) = self.record(1)
        (end,) = self.record(1, torch.openreg.current_stream(1))
        for one, other in ((start, end), (end, start)):
            with self.assertRaisesRegex(RuntimeError, "two events of one device"):
                one.elapsed_time(other)

    def test_times_add_up(self):
        first, second, third = self.record(3)
        self.assertEqual(
            first.elapsed_time(third),
            first.elapsed_time(second) + second.elapsed_time(third),
            atol=1e-5,
            rtol=1e-5,
        )

    def test_time_contains_the_work_between_and_is_in_milliseconds(self):
        start, end = (torch.openreg.Event(enable_timing=True) for _ in range(2))
        with StreamGate() as gate:
            gate.wait_until_reached()
            begin = time.monotonic()
            gate.open()
            start.record()
            x = torch.ones(256, 256, device=DEVICE_TYPE)
            for _ in range(20):
                x = x @ x * 0
            end.record()
            end.synchronize()
            seconds = time.monotonic() - begin
        self.assertGreater(start.elapsed_time(end), 0)
        self.assertLessEqual(start.elapsed_time(end), seconds * 1000)

    def test_last_record_counts(self):
        start, end = self.record(2)
        before = start.elapsed_time(end)
        end.record()
        end.synchronize()
        self.assertGreater(start.elapsed_time(end), before)

    def test_streams_of_different_priority_and_torch_events_can_be_measured(self):
        # torch.Event itself measures only to a torch.Event.
        start = torch.openreg.Event(enable_timing=True)
        end = torch.Event(DEVICE_TYPE, enable_timing=True)
        start.record(torch.openreg.Stream(0, priority=-1))
        start.synchronize()
        end.record(torch.openreg.Stream(0))
        end.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), 0)

    def test_event_without_timing_is_refused(self):
        with_timing, without = torch.openreg.Event(enable_timing=True), torch.openreg.Event()
        for event in (with_timing, without):
            event.record()
            event.synchronize()
        for pair in ((with_timing, without), (without, with_timing), (without, without)):
            with self.assertRaisesRegex((RuntimeError, ValueError), "enable_timing"):
                pair[0].elapsed_time(pair[1])

    def test_event_never_recorded_is_refused(self):
        recorded, never = (torch.openreg.Event(enable_timing=True) for _ in range(2))
        recorded.record()
        recorded.synchronize()
        for pair in ((recorded, never), (never, recorded)):
            with self.assertRaisesRegex((RuntimeError, ValueError), "recorded"):
                pair[0].elapsed_time(pair[1])

    def test_event_that_is_not_done_is_refused(self):
        start, end = (torch.openreg.Event(enable_timing=True) for _ in range(2))
        start.record()
        with StreamGate():
            end.record()
            with self.assertRaisesRegex((RuntimeError, ValueError), "complete"):
                start.elapsed_time(end)


instantiate_parametrized_tests(TestEvent)

if __name__ == "__main__":
    run_tests()
