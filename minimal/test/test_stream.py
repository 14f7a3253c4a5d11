# Step 4: streams, events and the errors of what runs on them.
import faulthandler

import torch
from common import MODULE, NAME, enqueue, fail, held
from torch.testing._internal.common_utils import TestCase, run_tests


class TestStream(TestCase):
    def test_call_returns_before_its_kernel_runs(self):
        x = torch.ones(10, device=NAME)
        with held() as gate:
            y = x + x
            self.assertFalse(torch.accelerator.current_stream().query())
            self.assertFalse(gate.is_set())
        self.assertEqual(y.cpu(), torch.full((10,), 2.0))

    def test_streams_do_not_wait_for_each_other(self):
        with held(), torch.Stream(NAME) as stream:
            enqueue(lambda: None)
            stream.synchronize()
            self.assertTrue(stream.query())

    def test_number_that_is_no_stream_is_refused(self):
        kind = torch.Stream(NAME).device_type
        stream = torch.Stream(stream_id=12345, device_index=0, device_type=kind)
        with self.assertRaisesRegex(RuntimeError, "orErrorInvalidResourceHandle"):
            stream.synchronize()

    def test_priorities_have_pools_of_their_own(self):
        self.assertNotEqual(torch.Stream(NAME, priority=-1), torch.Stream(NAME))

    def test_other_threads_run_while_one_waits(self):
        x = torch.ones(2, device=NAME)
        storage = torch.empty(2).untyped_storage()
        event = torch.Event(NAME)
        faulthandler.dump_traceback_later(100, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        for wait in (
            torch.accelerator.current_stream().synchronize,
            torch.accelerator.synchronize,
            MODULE.synchronize,
            event.synchronize,
            x.cpu,
            x[0].item,
            lambda: storage.copy_(x.untyped_storage()),
            torch.accelerator.empty_cache,
        ):
            torch.empty(2, device=NAME)  # leaves a block that is not in use
            enqueue(lambda: None)  # needs the GIL
            event.record()
            wait()

    def test_error_of_a_kernel_is_raised_where_the_host_waits(self):
        for wait in (
            lambda: torch.accelerator.synchronize(),
            lambda: torch.accelerator.current_stream().synchronize(),
            lambda: torch.ones(2).pin_memory().to(NAME, non_blocking=True).cpu(),
        ):
            fail("the matrix is singular")
            with self.assertRaisesRegex(RuntimeError, "orErrorLaunchFailure.*is singular"):
                wait()
            torch.accelerator.synchronize()  # the stream goes on
            self.assertEqual(torch.ones(2, device=NAME).cpu(), torch.ones(2))


class TestEvent(TestCase):
    def test_event_that_was_never_recorded_is_done(self):
        event = torch.Event(NAME)
        self.assertTrue(event.query())
        event.synchronize()

    def test_event_is_done_when_its_stream_has_reached_it(self):
        event = torch.Event(NAME)
        with held():
            event.record()
            self.assertFalse(event.query())
        event.synchronize()
        self.assertTrue(event.query())

    def test_stream_waits_for_an_event_and_the_host_does_not(self):
        first, second = torch.Stream(NAME), torch.Stream(NAME)
        with held(first):
            second.wait_event(first.record_event())
            enqueue(lambda: None, second)
            self.assertFalse(second.query())
        second.synchronize()
        self.assertTrue(first.query())

    def test_time_passes_between_events(self):
        start, end = (torch.Event(NAME, enable_timing=True) for _ in range(2))
        start.record()
        x = torch.ones(1 << 20, device=NAME)
        x = x + x
        end.record()
        end.synchronize()
        self.assertGreater(start.elapsed_time(end), 0)

    def test_event_without_timing_has_no_time(self):
        start, end = (torch.Event(NAME) for _ in range(2))
        start.record()
        end.record()
        end.synchronize()
        with self.assertRaises((RuntimeError, ValueError)):
            start.elapsed_time(end)


if __name__ == "__main__":
    run_tests()
