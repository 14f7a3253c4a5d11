"""Events: they mark a position in a stream, order other streams after it, and measure time."""

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, needs
from torch_openreg.conformance.target import target

DEVICE = target().device


@needs("events")
class TestEvents(ConformanceTestCase):
    def test_event_that_was_never_recorded_is_done(self) -> None:
        event = torch.Event(DEVICE)
        self.assertTrue(event.query())
        event.synchronize()

    def test_event_is_done_after_it_was_synchronized(self) -> None:
        event = torch.Event(DEVICE)
        x = torch.ones(256, 256, device=DEVICE) @ torch.ones(256, 256, device=DEVICE)
        event.record(torch.accelerator.current_stream(DEVICE))
        event.synchronize()
        self.assertTrue(event.query())
        self.assert_bit_equal(x[0], torch.full((256,), 256.0))

    def test_event_orders_a_stream_behind_another(self) -> None:
        first, second = torch.Stream(DEVICE), torch.Stream(DEVICE)
        x = torch.zeros(1000, device=DEVICE)
        torch.accelerator.synchronize(DEVICE)
        with target().hold(first):
            with first:
                x += 1
            second.wait_event(first.record_event())
            with second:
                y = x * 2
        second.synchronize()
        self.assert_bit_equal(y, torch.full((1000,), 2.0))

    def test_waiting_for_an_event_that_was_never_recorded_returns(self) -> None:
        stream = torch.Stream(DEVICE)
        stream.wait_event(torch.Event(DEVICE))
        stream.synchronize()

    def test_event_is_recorded_again(self) -> None:
        event, stream = torch.Event(DEVICE), torch.Stream(DEVICE)
        for number in range(3):
            with stream:
                x = torch.full((10,), float(number), device=DEVICE) + 1
                event.record(stream)
            event.synchronize()
            self.assert_bit_equal(x, torch.full((10,), number + 1.0))

    @needs("timing")
    def test_time_between_events_is_that_of_the_work_between_them(self) -> None:
        events = [torch.Event(DEVICE, enable_timing=True) for _ in range(3)]
        stream = torch.accelerator.current_stream(DEVICE)
        x = torch.ones(256, 256, device=DEVICE)
        for event in events:
            event.record(stream)
            for _ in range(20):
                x = x @ x / 256
        events[-1].synchronize()
        parts = [events[index].elapsed_time(events[index + 1]) for index in range(2)]
        self.assertTrue(all(part > 0 for part in parts), parts)
        whole = events[0].elapsed_time(events[2])
        self.assertEqual(whole, sum(parts), atol=0.05, rtol=0.05)

    @needs("timing")
    def test_time_of_an_event_without_timing_is_refused(self) -> None:
        event, timed = torch.Event(DEVICE), torch.Event(DEVICE, enable_timing=True)
        stream = torch.accelerator.current_stream(DEVICE)
        event.record(stream)
        timed.record(stream)
        stream.synchronize()
        with self.assertRaises((RuntimeError, ValueError)):
            event.elapsed_time(timed)
