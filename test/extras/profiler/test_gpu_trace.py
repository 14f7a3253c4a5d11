"""Callbacks of torch's GPU trace."""

import contextlib
import importlib
from unittest import mock

import pytest
import torch
from common import DEVICE_TYPE, TestCase, run_program, run_tests

pytestmark = pytest.mark.sample(0.2)

MODULE = torch.get_device_module(DEVICE_TYPE)
TRACE = importlib.import_module(f"torch.{DEVICE_TYPE}._gpu_trace")


def handle_of(stream):
    """Returns the number that a trace has for a stream: CUDA's default stream is 0."""
    return stream.cuda_stream if DEVICE_TYPE == "cuda" else stream.native_handle


def event_handle_of(event):
    return event._as_parameter_.value


class TestGpuTrace(TestCase):
    def setUp(self):
        super().setUp()
        MODULE.synchronize()
        torch._C._activate_gpu_trace()

    @contextlib.contextmanager
    def traced(self, kind):
        """Registers a mock for one kind of event, and for this block alone."""
        callback = mock.Mock()
        getattr(TRACE, f"register_callback_for_{kind}")(callback)
        try:
            yield callback
        finally:
            name = "".join(word.capitalize() for word in kind.split("_"))
            getattr(TRACE, f"{name}Callbacks").callback_list.remove(callback)

    def test_an_event_is_created_by_its_first_record(self):
        with self.traced("event_creation") as created:
            event = MODULE.Event()
            created.assert_not_called()
            event.record()
            event.record()
        created.assert_called_once_with(event_handle_of(event))

    def test_an_event_that_goes_is_deleted(self):
        event = MODULE.Event()
        event.record()
        handle = event_handle_of(event)
        with self.traced("event_deletion") as deleted:
            del event
        deleted.assert_called_once_with(handle)

    def test_a_record_names_the_event_and_the_stream(self):
        event, stream = MODULE.Event(), MODULE.Stream()
        with self.traced("event_record") as recorded:
            event.record()
            event.record(stream)
        handle = event_handle_of(event)
        self.assertEqual(
            recorded.mock_calls,
            [
                mock.call(handle, handle_of(MODULE.default_stream())),
                mock.call(handle, handle_of(stream)),
            ],
        )

    def test_a_wait_names_the_event_and_the_stream(self):
        event, stream = MODULE.Event(), MODULE.Stream()
        event.record()
        with self.traced("event_wait") as awaited:
            stream.wait_event(event)
        awaited.assert_called_once_with(event_handle_of(event), handle_of(stream))

    def test_memory_is_allocated_and_deallocated(self):
        with self.traced("memory_allocation") as allocated:
            x = torch.empty(10, device=DEVICE_TYPE)
        address = x.data_ptr()
        allocated.assert_called_once_with(address)
        with self.traced("memory_deallocation") as freed:
            del x
        freed.assert_called_once_with(address)

    def test_a_stream_of_the_pool_is_created_once(self):
        with self.traced("stream_creation") as created:
            streams = [MODULE.Stream() for _ in range(64)]
        handles = [call.args[0] for call in created.mock_calls]
        self.assertEqual(len(handles), len(set(handles)))
        self.assertLessEqual(set(handles), {handle_of(stream) for stream in streams})

    def test_synchronizations_are_told_apart(self):
        event, stream = MODULE.Event(), MODULE.Stream()
        event.record(stream)
        kinds = ("device_synchronization", "stream_synchronization", "event_synchronization")
        with contextlib.ExitStack() as stack:
            callbacks = [stack.enter_context(self.traced(kind)) for kind in kinds]
            event.synchronize()
            stream.synchronize()
            MODULE.synchronize()
        self.assertEqual(
            [callback.mock_calls for callback in callbacks],
            [[mock.call()], [mock.call(handle_of(stream))], [mock.call(event_handle_of(event))]],
        )

    def test_queries_are_no_synchronization(self):
        event, stream = MODULE.Event(), MODULE.Stream()
        event.record(stream)
        event.synchronize()
        kinds = ("stream_synchronization", "event_synchronization")
        with self.traced(kinds[0]) as of_stream, self.traced(kinds[1]) as of_event:
            self.assertTrue(event.query())
            self.assertTrue(stream.query())
        of_stream.assert_not_called()
        of_event.assert_not_called()

    def test_an_operator_that_gives_the_host_a_value_synchronizes(self):
        x = torch.ones(5, device=DEVICE_TYPE)
        handle = handle_of(MODULE.default_stream())
        for read in (x.nonzero, x[0].item, x.cpu):
            with self.traced("stream_synchronization") as synchronized:
                read()
            synchronized.assert_called_once_with(handle)

    def test_all_callbacks_of_a_kind_are_called(self):
        with self.traced("memory_allocation") as first, self.traced("memory_allocation") as second:
            torch.empty(10, device=DEVICE_TYPE)
        first.assert_called_once()
        second.assert_called_once()

    def test_an_exception_of_a_callback_is_logged_and_not_raised(self):
        with self.traced("memory_allocation") as allocated, self.assertLogs("torch._utils"):
            allocated.side_effect = ValueError("of the callback")
            x = torch.ones(2, device=DEVICE_TYPE)
        self.assertEqual(x.tolist(), [1, 1])

    def test_memory_that_an_exception_frees_is_reported(self):
        # The operator's result is freed while its exception is on its way.
        x, y = torch.ones(2, 3, device=DEVICE_TYPE), torch.ones(5, device=DEVICE_TYPE)
        with self.traced("memory_deallocation") as freed:
            with self.assertRaisesRegex(RuntimeError, "2"):
                torch.stack([x, x] * 600 + [y])
            for _ in range(3):
                with self.assertRaises(IndexError):
                    self.fail_after_allocating()
        freed.assert_called()

    @staticmethod
    def fail_after_allocating():
        def allocate_and_fail():
            kept = torch.ones(7, device=DEVICE_TYPE)
            raise IndexError(kept.shape)

        allocate_and_fail()

    def test_the_sanitizer_of_streams_and_the_trace_observe_together(self):
        with self.traced("memory_allocation") as allocated:
            torch.openreg.sanitizer.enable("collect")
            try:
                x = torch.zeros(1000, device=DEVICE_TYPE)
                with MODULE.stream(MODULE.Stream()):
                    x.add_(1)
                (finding,) = torch.openreg.sanitizer.findings()
                torch.openreg.sanitizer.clear()
            finally:
                torch.openreg.sanitizer.disable()
        self.assertEqual(finding.kind, "race")
        allocated.assert_called_once_with(x.data_ptr())


class TestActivation(TestCase):
    def test_without_activation_no_callback_is_called(self):
        done = run_program(f"""
            import importlib, torch
            trace = importlib.import_module("torch.{DEVICE_TYPE}._gpu_trace")
            trace.register_callback_for_memory_allocation(print)
            torch.empty(2, device="{DEVICE_TYPE}")
        """)
        self.assertEqual(done.stdout, "")

    def test_memory_that_lives_until_the_exit_does_no_harm(self):
        done = run_program(f"""
            import importlib, torch
            trace = importlib.import_module("torch.{DEVICE_TYPE}._gpu_trace")
            torch._C._activate_gpu_trace()
            trace.register_callback_for_memory_deallocation(lambda address: None)
            torch.kept = torch.ones(2, device="{DEVICE_TYPE}")
        """)
        self.assertEqual(done.stderr, "")


class TestCsan(TestCase):
    """torch.cuda._sanitizer, in programs of device type cuda."""

    PROGRAM = """
        import torch
        x = torch.zeros(1000, device="cuda")
        side = torch.cuda.Stream()
        {order}
        with torch.cuda.stream(side):
            x.add_(1)
        torch.cuda.synchronize()
        print(int(x.sum()))
    """

    def run_with_csan(self, order, expect_success=True):
        settings = {"OPENREG_DEVICE_TYPE": "cuda", "TORCH_CUDA_SANITIZER": "1"}
        return run_program(self.PROGRAM.format(order=order), settings, expect_success)

    def test_a_race_is_found(self):
        done = self.run_with_csan("", expect_success=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("CSAN detected a possible data race", done.stderr)
        self.assertIn("add_", done.stderr)

    def test_an_ordered_program_is_silent(self):
        done = self.run_with_csan("side.wait_stream(torch.cuda.current_stream())")
        self.assertEqual((done.stdout, done.stderr), ("1000\n", ""))


if __name__ == "__main__":
    run_tests()
