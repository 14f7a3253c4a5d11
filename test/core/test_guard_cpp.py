"""The device type's C++ interfaces, called from C++ as torch calls them: every virtual of the
guard and of the hooks, and c10's guards and event on top of them.
"""

import warnings
from pathlib import Path

import torch
from common import (
    DEVICE_COUNT,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    StreamGate,
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
)
from interfaces import extension, extension_setting, overrides, virtuals

CSRC = Path(__file__).resolve().parents[2] / "csrc"
LAST = DEVICE_COUNT - 1
MIB = 1024 * 1024


def device(index=None):
    return torch.device("openreg") if index is None else torch.device("openreg", index)


class CppTestCase(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cpp = extension()

    def new_stream(self, index=0):
        return self.cpp.get_stream_from_global_pool(device(index), False)


class TestInterfacesAreComplete(OpenRegTestCase):
    def test_guard_overrides_every_virtual(self):
        declared = virtuals("c10/core/impl/DeviceGuardImplInterface.h", "DeviceGuardImplInterface")
        self.assertGreater(len(declared), 20)
        self.assertEqual(declared, overrides(CSRC / "core" / "GuardImpl.h", "OpenRegGuardImpl"))

    def test_hooks_override_every_virtual(self):
        declared = virtuals(
            "ATen/detail/AcceleratorHooksInterface.h", "AcceleratorHooksInterface"
        ) | virtuals("ATen/detail/PrivateUse1HooksInterface.h", "PrivateUse1HooksInterface")
        self.assertGreater(len(declared), 12)
        hooks = CSRC / "hooks" / "Hooks.h"
        self.assertEqual(
            declared, overrides(hooks, "OpenRegHooks") | overrides(hooks, "OpenRegHooksInterface")
        )


class TestAllocator(CppTestCase):
    @parametrize("size", [1, 1000, 3 * MIB, 0])
    def test_raw_memory_comes_from_the_caching_allocator_and_goes_back(self, size):
        before = torch.openreg.memory_allocated()
        address = self.cpp.raw_allocate(size)
        self.assertGreaterEqual(torch.openreg.memory_allocated() - before, size)
        self.assertEqual(address == 0, size == 0)
        self.cpp.raw_deallocate(address)
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_raw_memory_that_is_not_live_is_not_freed(self):
        ended = run_program(
            """
            from common import torch, torch_openreg
            from interfaces import extension
            cpp = extension()
            x = torch.ones(1000, device="openreg")
            before = torch.openreg.memory_allocated()
            address = cpp.raw_allocate(100)
            cpp.raw_deallocate(address)
            for wrong in (address, x.data_ptr() + 512, x.data_ptr() + 1, 8, 2**60):
                cpp.raw_deallocate(wrong)
            assert torch.openreg.memory_allocated() == before
            assert x.sum().item() == 1000
            """,
            extension_setting(),
        )
        self.assertEqual(ended.stderr.count("raw_deallocate: expected an address"), 5)


class TestGuardDevice(CppTestCase):
    def test_type_is_the_registered_one(self):
        self.assertEqual(self.cpp.type(), "openreg")

    def test_device_count_is_that_of_python(self):
        self.assertEqual(self.cpp.device_count(), DEVICE_COUNT)

    def test_exchange_device_returns_the_previous_device(self):
        self.assertEqual(self.cpp.exchange_device(device(LAST)), device(0))
        self.assertEqual(self.cpp.exchange_device(device(0)), device(LAST))

    def test_exchange_device_without_an_index_changes_nothing(self):
        self.assertEqual(self.cpp.exchange_device(device()), device(0))
        self.assertEqual(self.cpp.get_device(), device(0))

    @parametrize("function", ["exchange_device", "set_device"])
    def test_device_out_of_range_is_refused_by(self, function):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            getattr(self.cpp, function)(device(DEVICE_COUNT))
        self.assertEqual(self.cpp.get_device(), device(0))

    @parametrize("function", ["exchange_device", "set_device"])
    def test_device_of_another_type_is_refused_by(self, function):
        with self.assertRaisesRegex(RuntimeError, "expected a device of type openreg, got cpu"):
            getattr(self.cpp, function)(torch.device("cpu"))

    def test_set_device_is_seen_by_python(self):
        self.cpp.set_device(device(LAST))
        self.assertEqual(torch.openreg.current_device(), LAST)
        self.cpp.set_device(device(0))

    def test_unchecked_set_device_sets_the_device(self):
        self.cpp.unchecked_set_device(device(LAST))
        self.assertEqual(self.cpp.get_device(), device(LAST))
        self.cpp.unchecked_set_device(device(0))

    def test_unchecked_set_device_out_of_range_warns_and_changes_nothing(self):
        with self.assertWarnsRegex(UserWarning, "orErrorInvalidDevice"):
            self.cpp.unchecked_set_device(device(DEVICE_COUNT))
        self.assertEqual(self.cpp.get_device(), device(0))

    def test_unchecked_set_device_out_of_range_survives_warnings_as_errors(self):
        # Python raises the warning after the call has returned.
        with warnings.catch_warnings(), self.assertRaises(UserWarning):
            warnings.simplefilter("error")
            self.cpp.unchecked_set_device(device(DEVICE_COUNT))
        self.assertEqual(self.cpp.get_device(), device(0))

    def test_unchecked_set_device_without_an_index_changes_nothing(self):
        self.cpp.unchecked_set_device(device())
        self.assertEqual(self.cpp.get_device(), device(0))

    def test_current_device_belongs_to_the_thread(self):
        self.cpp.set_device(device(LAST))
        self.assertEqual(call_in_thread(self.cpp.get_device), device(0))
        self.cpp.set_device(device(0))

    def test_every_type_of_the_capability_can_be_allocated(self):
        for dtype in self.cpp.get_device_capability(device(0)):
            self.assertEqual(torch.empty(2, dtype=dtype, device="openreg").dtype, dtype)

    def test_capability_names_all_types_of_the_usual_models(self):
        types = set(self.cpp.get_device_capability(device()))
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64):
            self.assertIn(dtype, types)

    def test_capability_of_a_device_out_of_range_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            self.cpp.get_device_capability(device(DEVICE_COUNT))

    def test_synchronize_device_waits_for_all_streams_of_the_device(self):
        stream = self.new_stream()
        x = torch.zeros(3, device="openreg")
        torch.openreg.synchronize()
        with stream:
            x.fill_(1)
        self.cpp.synchronize_device(0)
        self.assertTrue(self.cpp.query_stream(stream))

    @requires_two_devices
    def test_synchronize_device_waits_for_the_device_given_and_no_other(self):
        # A wait for device 0, the current one, would never end.
        with StreamGate(torch.openreg.current_stream(0)):
            x = torch.ones(3, device="openreg:1")
            self.cpp.synchronize_device(1)
            self.assertTrue(self.cpp.query_stream(torch.openreg.current_stream(1)))
            self.assertFalse(self.cpp.query_stream(torch.openreg.current_stream(0)))
        self.assertEqual(x.tolist(), [1.0] * 3)

    def test_synchronize_device_out_of_range_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            self.cpp.synchronize_device(DEVICE_COUNT)


class TestGuardStream(CppTestCase):
    def test_current_stream_is_the_default_stream_at_first(self):
        for index in range(DEVICE_COUNT):
            self.assertEqual(
                self.cpp.get_stream(device(index)), self.cpp.get_default_stream(device(index))
            )

    def test_default_stream_has_id_0(self):
        stream = self.cpp.get_default_stream(device(LAST))
        self.assertEqual((stream.stream_id, stream.device_index), (0, LAST))

    @parametrize("function", ["get_stream", "get_default_stream"])
    def test_device_without_an_index_is_the_current_one_for(self, function):
        with torch.openreg.device(LAST):
            self.assertEqual(getattr(self.cpp, function)(device()).device_index, LAST)

    @parametrize("function", ["get_stream", "get_default_stream"])
    def test_device_out_of_range_is_refused_by(self, function):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            getattr(self.cpp, function)(device(DEVICE_COUNT))

    def test_pool_streams_follow_each_other_on_the_device_given(self):
        streams = [self.new_stream(LAST) for _ in range(4)]
        self.assertEqual(len({stream.stream_id for stream in streams}), 4)
        self.assertEqual({stream.device_index for stream in streams}, {LAST})

    def test_pool_of_high_priority_gives_streams_of_high_priority(self):
        priority = {
            is_high: torch.openreg.Stream(
                stream_id=stream.stream_id,
                device_index=stream.device_index,
                device_type=stream.device_type,
            ).priority
            for is_high in (False, True)
            for stream in [self.cpp.get_stream_from_global_pool(device(0), is_high)]
        }
        self.assertEqual(priority, {False: 0, True: -1})

    def test_pool_streams_come_in_turn_again(self):
        first = self.new_stream()
        seen = 1
        while self.new_stream() != first:
            seen += 1
            self.assertLess(seen, 1000)

    def test_new_stream_runs_beside_the_default_stream(self):
        stream = self.cpp.get_new_stream(device(0), 0)
        x = torch.zeros(3, device="openreg")
        torch.openreg.synchronize()
        with StreamGate(self.cpp.get_default_stream(device(0))):
            with stream:
                x.fill_(2)
            self.cpp.synchronize_stream(stream)
        self.assertEqual(x.tolist(), [2.0] * 3)

    def test_exchange_stream_returns_the_previous_stream_of_its_device(self):
        stream = self.new_stream(LAST)
        default = self.cpp.get_default_stream(device(LAST))
        self.assertEqual(self.cpp.exchange_stream(stream), default)
        self.assertEqual(self.cpp.get_stream(device(LAST)), stream)
        self.assertEqual(self.cpp.exchange_stream(default), stream)

    def test_exchange_stream_leaves_the_current_device(self):
        default = self.cpp.exchange_stream(self.new_stream(LAST))
        self.assertEqual(self.cpp.get_device(), device(0))
        self.cpp.exchange_stream(default)

    def test_current_stream_belongs_to_the_thread(self):
        stream = self.new_stream()
        default = self.cpp.exchange_stream(stream)
        self.assertEqual(call_in_thread(lambda: self.cpp.get_stream(device(0))), default)
        self.cpp.exchange_stream(default)

    def test_native_handles_tell_streams_apart(self):
        streams = [self.cpp.get_default_stream(device(0)), self.new_stream(), self.new_stream()]
        handles = [self.cpp.get_stream_native_handle(stream) for stream in streams]
        self.assertNotIn(0, handles)
        self.assertEqual(len(set(handles)), 3)
        self.assertEqual(handles, [self.cpp.get_stream_native_handle(stream) for stream in streams])

    def test_native_handle_makes_an_external_stream_of_the_same_queue(self):
        stream = self.new_stream()
        handle = self.cpp.get_stream_native_handle(stream)
        external = torch.openreg.ExternalStream(handle, device=0)
        with StreamGate(stream):
            self.assertFalse(self.cpp.query_stream(external))

    def test_id_that_names_no_stream_is_refused(self):
        for stream_id in (-8, 2**40, 8 * 1000 + 1, 8 * 12345):
            stream = torch.Stream(
                stream_id=stream_id,
                device_index=0,
                device_type=self.new_stream().device_type,
            )
            with self.assertRaises(RuntimeError):
                self.cpp.query_stream(stream)

    def test_query_tells_whether_the_stream_is_idle(self):
        stream = self.new_stream()
        self.assertTrue(self.cpp.query_stream(stream))
        with StreamGate(stream):
            self.assertFalse(self.cpp.query_stream(stream))
        self.cpp.synchronize_stream(stream)
        self.assertTrue(self.cpp.query_stream(stream))

    def test_no_stream_is_capturing(self):
        self.assertFalse(self.cpp.is_stream_capturing(self.new_stream()))

    def test_recorded_data_is_not_reused_until_the_stream_has_passed(self):
        size = 41 * MIB
        torch.openreg.empty_cache()
        stream = self.new_stream()
        x = torch.empty(size, dtype=torch.uint8, device="openreg")
        address = x.data_ptr()
        with StreamGate(stream):
            self.cpp.record_data_ptr_on_stream(x, stream)
            del x
            y = torch.empty(size, dtype=torch.uint8, device="openreg")
            self.assertNotEqual(y.data_ptr(), address)
        self.cpp.synchronize_stream(stream)
        z = torch.empty(size, dtype=torch.uint8, device="openreg")
        self.assertEqual(z.data_ptr(), address)

    def test_recording_data_that_is_not_ours_does_nothing(self):
        self.cpp.record_host_data_ptr_on_stream(self.new_stream())
        self.cpp.record_data_ptr_on_stream(torch.ones(3), self.new_stream())


class TestGuardEvent(CppTestCase):
    def setUp(self):
        super().setUp()
        self.events = []

    def tearDown(self):
        for event in self.events:
            self.cpp.destroy_event(event, 0)
        super().tearDown()

    def record(self, stream, event=0, index=-1, flag="PYTORCH_DEFAULT"):
        recorded = self.cpp.record(event, stream, index, getattr(self.cpp.EventFlag, flag))
        if event == 0:
            self.events.append(recorded)
        return recorded

    def test_first_record_creates_the_event(self):
        self.assertNotEqual(self.record(self.new_stream()), 0)

    def test_later_record_keeps_the_event(self):
        stream = self.new_stream()
        event = self.record(stream)
        self.assertEqual(self.record(stream, event), event)

    def test_event_that_could_not_be_wrapped_is_in_no_other(self):
        stream = self.new_stream()
        event = self.record(stream)
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            self.cpp.wrap_event(event, DEVICE_COUNT)
        with StreamGate(stream):
            other = self.record(stream)
            self.assertNotEqual(other, event)
            self.assertFalse(self.cpp.query_event(other))

    def test_event_that_was_never_recorded_is_complete(self):
        self.assertTrue(self.cpp.query_event(0))
        self.cpp.synchronize_event(0)
        self.cpp.block(0, self.new_stream())

    def test_event_is_complete_when_the_stream_has_passed_it(self):
        stream = self.new_stream()
        with StreamGate(stream):
            event = self.record(stream)
            self.assertFalse(self.cpp.query_event(event))
        self.cpp.synchronize_event(event)
        self.assertTrue(self.cpp.query_event(event))

    @parametrize("index", range(DEVICE_COUNT))
    def test_blocked_stream_waits_for_the_event(self, index):
        first, second = self.new_stream(), self.new_stream(index)
        with StreamGate(first):
            event = self.record(first)
            self.cpp.block(event, second)
            with second:
                torch.zeros(3, device=device(index))
            self.assertFalse(self.cpp.query_stream(second))
        self.cpp.synchronize_stream(second)
        self.assertTrue(self.cpp.query_event(event))

    def test_record_leaves_the_current_device(self):
        self.record(self.new_stream(LAST), index=LAST)
        self.assertEqual(self.cpp.get_device(), device(0))

    @requires_two_devices
    def test_record_on_a_stream_of_another_device_is_refused(self):
        text = "event was created on device 1, but the stream is on device 0"
        with self.assertRaisesRegex(RuntimeError, text):
            self.record(self.new_stream(0), index=1)

    def test_record_with_an_invalid_flag_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "expected PYTORCH_DEFAULT or BACKEND_DEFAULT"):
            self.record(self.new_stream(), flag="INVALID")

    def test_elapsed_time_is_that_between_the_records(self):
        stream = self.new_stream()
        start = self.record(stream, flag="BACKEND_DEFAULT")
        end = self.record(stream, flag="BACKEND_DEFAULT")
        self.cpp.synchronize_event(end)
        self.assertGreaterEqual(self.cpp.elapsed_time(start, end, 0), 0)
        self.assertLessEqual(self.cpp.elapsed_time(end, start, 0), 0)

    def test_elapsed_time_needs_events_with_timing(self):
        stream = self.new_stream()
        start, end = (self.record(stream, flag="PYTORCH_DEFAULT") for _ in range(2))
        self.cpp.synchronize_event(end)
        with self.assertRaises(RuntimeError):
            self.cpp.elapsed_time(start, end, 0)

    def test_elapsed_time_needs_complete_events(self):
        stream = self.new_stream()
        start = self.record(stream, flag="BACKEND_DEFAULT")
        with StreamGate(stream):
            end = self.record(stream, flag="BACKEND_DEFAULT")
            with self.assertRaises(RuntimeError):
                self.cpp.elapsed_time(start, end, 0)

    def test_elapsed_time_needs_recorded_events(self):
        with self.assertRaisesRegex(RuntimeError, "Both events must be recorded"):
            self.cpp.elapsed_time(0, 0, 0)

    def test_event_may_be_destroyed_while_streams_wait_for_it(self):
        first, second = self.new_stream(), self.new_stream()
        with StreamGate(first):
            event = self.cpp.record(0, first, -1, self.cpp.EventFlag.PYTORCH_DEFAULT)
            self.cpp.block(event, second)
            self.cpp.destroy_event(event, 0)
            self.assertFalse(self.cpp.query_stream(second))
        self.cpp.synchronize_stream(second)

    def test_destroying_no_event_does_nothing(self):
        self.cpp.destroy_event(0, 0)


class TestScopes(CppTestCase):
    def test_device_guard_sets_and_restores_the_device(self):
        inside = self.cpp.within_device_guard(device(LAST), self.cpp.get_device)
        self.assertEqual(inside, device(LAST))
        self.assertEqual(self.cpp.get_device(), device(0))

    def test_device_guard_restores_the_device_after_an_exception(self):
        with self.assertRaises(ZeroDivisionError):
            self.cpp.within_device_guard(device(LAST), lambda: 1 // 0)
        self.assertEqual(self.cpp.get_device(), device(0))

    def test_device_guards_nest(self):
        inside = self.cpp.within_device_guard(
            device(LAST), lambda: self.cpp.within_device_guard(device(0), self.cpp.get_device)
        )
        self.assertEqual(inside, device(0))

    def test_device_guard_refuses_a_device_out_of_range(self):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            self.cpp.within_device_guard(device(DEVICE_COUNT), self.cpp.get_device)

    def test_optional_device_guard_without_a_device_changes_nothing(self):
        inside = self.cpp.within_optional_device_guard(None, self.cpp.get_device)
        self.assertEqual(inside, device(0))

    def test_stream_guard_sets_and_restores_stream_and_device(self):
        stream = self.new_stream(LAST)
        inside = self.cpp.within_stream_guard(
            stream, lambda: (self.cpp.get_device(), self.cpp.get_stream(device(LAST)))
        )
        self.assertEqual(inside, (device(LAST), stream))
        self.assertEqual(self.cpp.get_device(), device(0))
        self.assertEqual(
            self.cpp.get_stream(device(LAST)), self.cpp.get_default_stream(device(LAST))
        )

    def test_stream_guard_makes_operators_use_the_stream(self):
        stream = self.new_stream()
        x = torch.zeros(3, device="openreg")
        torch.openreg.synchronize()
        with StreamGate(stream):
            self.cpp.within_stream_guard(stream, lambda: x.fill_(1))
            self.assertTrue(self.cpp.query_stream(self.cpp.get_default_stream(device(0))))
            self.assertFalse(self.cpp.query_stream(stream))

    def test_multi_stream_guard_sets_and_restores_one_stream_per_device(self):
        streams = [self.new_stream(index) for index in range(DEVICE_COUNT)]

        def current():
            return [self.cpp.get_stream(device(index)) for index in range(DEVICE_COUNT)]

        before = current()
        self.assertEqual(self.cpp.within_multi_stream_guard(streams, current), streams)
        self.assertEqual(current(), before)

    def test_multi_stream_guard_leaves_the_current_device(self):
        inside = self.cpp.within_multi_stream_guard([self.new_stream(LAST)], self.cpp.get_device)
        self.assertEqual(inside, device(0))


class TestEvent(CppTestCase):
    def event(self, flag="PYTORCH_DEFAULT"):
        return self.cpp.Event(getattr(self.cpp.EventFlag, flag))

    def test_new_event_has_no_device_and_is_complete(self):
        event = self.event()
        self.assertEqual(event.device(), device())
        self.assertFalse(event.is_marked_for_recording())
        self.assertTrue(event.query())
        event.synchronize()

    def test_record_binds_the_event_to_the_device_of_the_stream(self):
        event = self.event()
        event.record(self.new_stream(LAST))
        self.assertTrue(event.is_marked_for_recording())
        self.assertEqual(event.device(), device(LAST))

    @requires_two_devices
    def test_record_on_a_second_device_is_refused(self):
        event = self.event()
        event.record(self.new_stream(0))
        with self.assertRaises(RuntimeError):
            event.record(self.new_stream(1))

    def test_record_once_records_once(self):
        event = self.event()
        first, second = self.new_stream(), self.new_stream()
        event.record_once(first)
        event.synchronize()
        with StreamGate(second):
            event.record_once(second)
            self.assertTrue(event.query())

    def test_block_orders_streams_across_devices(self):
        first, second = self.new_stream(0), self.new_stream(LAST)
        event = self.event()
        with StreamGate(first):
            event.record(first)
            event.block(second)
            self.assertFalse(self.cpp.query_stream(second))
        self.cpp.synchronize_stream(second)
        self.assertTrue(event.query())

    def test_wait_refers_to_the_record_before_it(self):
        first, second = self.new_stream(), self.new_stream()
        event = self.event()
        event.record(first)
        event.block(second)
        with StreamGate(first):
            event.record(first)
            self.cpp.synchronize_stream(second)
            self.assertFalse(event.query())

    def test_elapsed_time_of_two_events(self):
        stream = self.new_stream()
        start, end = self.event("BACKEND_DEFAULT"), self.event("BACKEND_DEFAULT")
        start.record(stream)
        end.record(stream)
        end.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), 0)

    def test_elapsed_time_without_timing_is_refused(self):
        stream = self.new_stream()
        start, end = self.event(), self.event()
        start.record(stream)
        end.record(stream)
        end.synchronize()
        with self.assertRaisesRegex(ValueError, "enable_timing"):
            start.elapsed_time(end)


class TestHooksInterface(CppTestCase):
    def test_hooks_are_registered_for_both_interfaces(self):
        self.assertTrue(self.cpp.are_hooks_one_object())

    def test_backend_is_built_and_available(self):
        self.assertTrue(self.cpp.hooks_is_built())
        self.assertTrue(self.cpp.hooks_is_available())

    def test_device_is_primary_once_it_has_been_used(self):
        torch.ones(1, device=device(LAST))
        self.assertTrue(self.cpp.hooks_has_primary_context(LAST))

    def test_primary_context_of_a_device_out_of_range_is_refused(self):
        for index in (-1, DEVICE_COUNT):
            with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
                self.cpp.hooks_has_primary_context(index)

    def test_questions_and_init_create_no_device(self):
        run_program(
            """
            from common import torch, torch_openreg
            from interfaces import extension
            cpp = extension()
            assert cpp.hooks_is_available() and cpp.hooks_device_count() == 2
            cpp.hooks_get_current_device()
            cpp.hooks_exchange_device(1)
            cpp.hooks_exchange_device(0)
            cpp.hooks_is_pinned_ptr(1234)
            cpp.hooks_get_default_generator(1)
            cpp.get_device_capability(torch.device("openreg", 1))
            cpp.device_count()
            cpp.synchronize_device(1)
            cpp.hooks_init()
            assert [cpp.hooks_has_primary_context(i) for i in range(2)] == [False, False]
            cpp.get_stream(torch.device("openreg", 0))
            assert [cpp.hooks_has_primary_context(i) for i in range(2)] == [True, False]
            """,
            {"OPENREG_DEVICE_COUNT": "2", **extension_setting()},
        )

    def test_without_devices_nothing_is_available(self):
        run_program(
            """
            from common import torch, torch_openreg
            from interfaces import extension
            cpp = extension()
            assert cpp.hooks_is_built() and not cpp.hooks_is_available()
            assert cpp.hooks_device_count() == 0 and cpp.device_count() == 0
            for call in (cpp.hooks_init, lambda: cpp.hooks_get_default_generator(-1),
                         lambda: cpp.set_device(torch.device("openreg", 0)),
                         lambda: cpp.hooks_pinned_allocator_makes_pinned_memory(10)):
                try:
                    call()
                except RuntimeError as error:
                    assert "No OpenReg device is available" in str(error), error
                else:
                    raise AssertionError("expected a RuntimeError")
            """,
            {"OPENREG_DEVICE_COUNT": "0", **extension_setting()},
        )

    def test_device_functions_agree_with_the_guard(self):
        self.assertEqual(self.cpp.hooks_device_count(), DEVICE_COUNT)
        self.cpp.hooks_set_current_device(LAST)
        self.assertEqual(self.cpp.hooks_get_current_device(), LAST)
        self.assertEqual(self.cpp.get_device(), device(LAST))
        self.assertEqual(self.cpp.hooks_exchange_device(0), LAST)
        self.assertEqual(self.cpp.get_device(), device(0))

    def test_maybe_exchange_device_exchanges_a_valid_index(self):
        self.assertEqual(self.cpp.hooks_maybe_exchange_device(LAST), 0)
        self.assertEqual(self.cpp.hooks_maybe_exchange_device(0), LAST)

    @parametrize("index", [-1, DEVICE_COUNT, 100])
    def test_maybe_exchange_device_ignores_an_index_out_of_range(self, index):
        self.cpp.hooks_set_current_device(LAST)
        self.assertEqual(self.cpp.hooks_maybe_exchange_device(index), LAST)
        self.assertEqual(self.cpp.get_device(), device(LAST))
        self.cpp.hooks_set_current_device(0)

    @parametrize("function", ["set_current_device", "exchange_device"])
    def test_device_out_of_range_is_refused_by(self, function):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            getattr(self.cpp, f"hooks_{function}")(DEVICE_COUNT)
        self.assertEqual(self.cpp.get_device(), device(0))

    def test_pinned_pointer_is_told_from_others(self):
        pinned = torch.empty(100, pin_memory=True)
        self.assertTrue(self.cpp.hooks_is_pinned_ptr(pinned.data_ptr()))
        self.assertTrue(self.cpp.hooks_is_pinned_ptr(pinned.data_ptr() + 399))
        self.assertFalse(self.cpp.hooks_is_pinned_ptr(torch.empty(100).data_ptr()))
        self.assertFalse(
            self.cpp.hooks_is_pinned_ptr(torch.empty(100, device="openreg").data_ptr())
        )
        self.assertFalse(self.cpp.hooks_is_pinned_ptr(0))

    def test_pinned_memory_allocator_makes_pinned_memory(self):
        self.assertTrue(self.cpp.hooks_pinned_allocator_makes_pinned_memory(1000))

    @parametrize("index", range(DEVICE_COUNT))
    def test_device_of_a_pointer_is_found(self, index):
        x = torch.empty(100, device=device(index))
        for address in (x.data_ptr(), x.data_ptr() + 399):
            self.assertEqual(self.cpp.hooks_get_device_from_ptr(address), device(index))

    def test_device_of_a_host_pointer_is_refused(self):
        for address in (0, torch.empty(100).data_ptr(), torch.empty(9, pin_memory=True).data_ptr()):
            with self.assertRaisesRegex(RuntimeError, "expected a pointer into openreg"):
                self.cpp.hooks_get_device_from_ptr(address)

    def test_default_generator_is_that_of_python(self):
        for index in range(DEVICE_COUNT):
            generator = self.cpp.hooks_get_default_generator(index)
            self.assertEqual(generator.device, device(index))
            generator.manual_seed(17 + index)
            self.assertEqual(torch.openreg.default_generators[index].initial_seed(), 17 + index)

    @parametrize("function", ["get_default_generator", "get_new_generator"])
    def test_generator_without_an_index_is_of_the_current_device(self, function):
        with torch.openreg.device(LAST):
            generator = getattr(self.cpp, f"hooks_{function}")(-1)
        self.assertEqual(generator.device, device(LAST))

    @parametrize("function", ["get_default_generator", "get_new_generator"])
    def test_generator_of_a_device_out_of_range_is_refused(self, function):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            getattr(self.cpp, f"hooks_{function}")(DEVICE_COUNT)

    def test_new_generator_is_independent(self):
        torch.openreg.manual_seed(3)
        generator = self.cpp.hooks_get_new_generator(0)
        generator.manual_seed(5)
        self.assertEqual(torch.openreg.initial_seed(), 3)

    @parametrize("size", [0, 4, 8, 4096])
    def test_resize_bytes_keeps_what_fits(self, size):
        x = torch.arange(8, dtype=torch.uint8, device=device(LAST))
        self.cpp.hooks_resize_bytes(x, size)
        storage = x.untyped_storage()
        self.assertEqual((storage.nbytes(), storage.device), (size, device(LAST)))
        kept = min(size, 8)
        y = torch.empty(0, dtype=torch.uint8, device=device(LAST)).set_(storage, 0, (kept,))
        self.assertEqual(y.tolist(), list(range(kept)))
        self.assertEqual(self.cpp.get_device(), device(0))


instantiate_parametrized_tests(TestAllocator)
instantiate_parametrized_tests(TestGuardDevice)
instantiate_parametrized_tests(TestGuardStream)
instantiate_parametrized_tests(TestGuardEvent)
instantiate_parametrized_tests(TestHooksInterface)

if __name__ == "__main__":
    run_tests()
