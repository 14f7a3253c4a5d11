"""The C++ interface under the names of PyTorch's pages for integrators of accelerators.

``public_header_test.cpp`` includes ``torch_openreg/OpenReg.h`` and uses each of the names.
"""

import tempfile
from pathlib import Path

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    INDEX_ERROR,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)

from torch_openreg import cpp_extension

pytestmark = pytest.mark.sample(0.24)

SOURCE = Path(__file__).with_name("public_header_test.cpp")
LAST = DEVICE_COUNT - 1
INVALID_DEVICE = 101  # orErrorInvalidDevice


class HeaderTestCase(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not hasattr(HeaderTestCase, "cpp"):
            folder = tempfile.TemporaryDirectory()
            cls.addClassCleanup(folder.cleanup)
            HeaderTestCase.cpp = cpp_extension.load(
                "public_header_test",
                [str(SOURCE)],
                extra_cflags=["-O0", "-g0"],
                build_directory=folder.name,
            )

    def setUp(self):
        super().setUp()
        torch.openreg.init()

    def tearDown(self):
        torch.openreg.set_device(0)
        super().tearDown()


class TestDevices(HeaderTestCase):
    def test_both_levels_count_and_say_the_current_device(self):
        self.assertEqual(self.cpp.device_count(), DEVICE_COUNT)
        self.assertEqual(self.cpp.GetDeviceCount(), DEVICE_COUNT)
        torch.openreg.set_device(LAST)
        self.assertEqual(self.cpp.current_device(), LAST)
        self.assertEqual(self.cpp.GetDevice(), LAST)

    @requires_two_devices
    def test_both_levels_set_the_current_device(self):
        self.cpp.set_device(1)
        self.assertEqual(torch.openreg.current_device(), 1)
        self.assertEqual(self.cpp.SetDevice(0), 0)
        self.assertEqual(torch.openreg.current_device(), 0)

    @requires_two_devices
    @parametrize(
        "name",
        ["exchange_device", "maybe_exchange_device", "ExchangeDevice", "MaybeExchangeDevice"],
    )
    def test_exchange_returns_the_device_before(self, name):
        self.assertEqual(getattr(self.cpp, name)(1), 0)
        self.assertEqual(self.cpp.current_device(), 1)
        self.assertEqual(getattr(self.cpp, name)(0), 1)

    @parametrize("name", ["set_device", "exchange_device", "check_device_index", "ExchangeDevice"])
    @parametrize("index", [-1, DEVICE_COUNT, 100])
    def test_an_index_out_of_range_is_refused(self, name, index):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            getattr(self.cpp, name)(index)
        self.assertEqual(self.cpp.current_device(), 0)

    @parametrize("index", [-1, DEVICE_COUNT])
    def test_set_device_of_the_driver_returns_its_error(self, index):
        self.assertEqual(self.cpp.SetDevice(index), INVALID_DEVICE)
        self.assertEqual(self.cpp.current_device(), 0)

    @parametrize("index", [-1, DEVICE_COUNT, 100])
    def test_maybe_exchange_ignores_an_index_out_of_range(self, index):
        torch.openreg.set_device(LAST)
        self.assertEqual(self.cpp.maybe_exchange_device(index), LAST)
        self.assertEqual(self.cpp.current_device(), LAST)


class TestGenerators(HeaderTestCase):
    def test_the_default_generator_is_pythons(self):
        torch.openreg.default_generators[LAST].manual_seed(123)
        self.assertEqual(self.cpp.getDefaultOpenRegGenerator(LAST).initial_seed(), 123)

    def test_the_default_generator_of_the_current_device(self):
        torch.openreg.set_device(LAST)
        device = torch.device(DEVICE_TYPE, LAST)
        self.assertEqual(self.cpp.getDefaultOpenRegGenerator(-1).device, device)

    def test_a_created_generator_has_torchs_seed(self):
        generator = self.cpp.createOpenRegGenerator(LAST)
        self.assertEqual(generator.initial_seed(), torch.Generator().initial_seed())
        self.assertEqual(generator.device, torch.device(DEVICE_TYPE, LAST))


class TestStreams(HeaderTestCase):
    def test_a_bool_chooses_the_priority(self):
        priority = torch.openreg.Stream.priority_range()[1]
        high = self.cpp.stream_of_bool(True, LAST)
        self.assertEqual(high.device_index, LAST)
        streams = {
            high: priority,
            self.cpp.stream_of_bool(False, LAST): 0,
            self.cpp.stream_of_priority(-1, LAST): priority,
            self.cpp.stream_of_priority(0, LAST): 0,
            self.cpp.stream_of_defaults(): 0,
        }
        for stream, expected in streams.items():
            ours = torch.openreg.Stream(
                stream_id=stream.stream_id,
                device_index=stream.device_index,
                device_type=stream.device_type,
            )
            self.assertEqual(ours.priority, expected)

    def test_a_stream_has_its_handle_and_its_triple(self):
        self.assertTrue(self.cpp.is_stream_consistent(torch.openreg.default_stream()))
        self.assertTrue(self.cpp.is_stream_consistent(torch.openreg.Stream()))

    def test_a_stream_prints_its_number_and_device(self):
        stream = torch.openreg.Stream()
        self.assertEqual(
            self.cpp.describe(stream), f"stream {stream.stream_id} on device {DEVICE_TYPE}:0"
        )


class TestEvents(HeaderTestCase):
    def test_an_event_is_created_by_its_first_record(self):
        event = self.cpp.OpenRegEvent(False)
        self.assertFalse(event.isCreated())
        self.assertFalse(event.has_event())
        self.assertIsNone(event.device())
        self.assertEqual(event.device_index(), -1)
        self.assertTrue(event.query())
        event.synchronize()
        event.block(torch.openreg.current_stream())

        torch.openreg.set_device(LAST)
        event.record()
        self.assertTrue(event.isCreated())
        self.assertTrue(event.has_event())
        self.assertEqual(event.device(), torch.device(DEVICE_TYPE, LAST))
        self.assertEqual(event.device_index(), LAST)
        self.assertTrue(event.is_moved())

    def test_an_event_is_done_when_its_record_is(self):
        event = self.cpp.OpenRegEvent(False)
        with StreamGate():
            event.record(torch.openreg.current_stream())
            self.assertFalse(event.query())
        event.synchronize()
        self.assertTrue(event.query())

    def test_record_once_keeps_the_first_record(self):
        event = self.cpp.OpenRegEvent(False)
        event.recordOnce(torch.openreg.current_stream())
        event.synchronize()
        with StreamGate():
            event.recordOnce(torch.openreg.current_stream())
            self.assertTrue(event.query())
            event.record(torch.openreg.current_stream())
            self.assertFalse(event.query())

    def test_a_stream_waits_for_an_event(self):
        event = self.cpp.OpenRegEvent(False)
        side = torch.openreg.Stream()
        with StreamGate():
            event.record(torch.openreg.current_stream())
            event.block(side)
            self.assertFalse(side.query())
        side.synchronize()

    @requires_two_devices
    def test_an_event_is_bound_to_the_device_of_its_first_record(self):
        event = self.cpp.OpenRegEvent(False)
        event.record(torch.openreg.current_stream(0))
        with self.assertRaisesRegex(
            RuntimeError, f"event was created on {DEVICE_TYPE}:0, but the stream is "
        ):
            event.record(torch.openreg.current_stream(1))

    def test_elapsed_time_is_of_two_events_that_take_times(self):
        start, end, plain = (self.cpp.OpenRegEvent(timing) for timing in (True, True, False))
        with self.assertRaisesRegex(ValueError, "Both events must be recorded"):
            start.elapsed_time(end)
        for event in (start, end, plain):
            event.record(torch.openreg.current_stream())
        end.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), 0)
        with self.assertRaisesRegex(ValueError, "must be created with argument"):
            start.elapsed_time(plain)

    def test_a_failure_of_the_stream_comes_out_at_the_event(self):
        event = self.cpp.OpenRegEvent(False)
        x = torch.zeros(2, device=DEVICE_TYPE)
        index = torch.tensor([7], device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate():
            x[index]
            event.record(torch.openreg.current_stream())
        with self.assertRaisesRegex(INDEX_ERROR, "out of"):
            event.synchronize()
        with self.assertRaises(INDEX_ERROR):
            torch.openreg.synchronize()


instantiate_parametrized_tests(TestDevices)

if __name__ == "__main__":
    run_tests()
