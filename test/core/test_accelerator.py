"""torch.accelerator: device-independent code finds the device, and every function works.

Graphs are not among them yet.
"""

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_tests,
    subtest,
)

pytestmark = pytest.mark.sample(0.15)

LAST = DEVICE_COUNT - 1
MIB = 1024 * 1024
SPELLINGS = parametrize(
    "device",
    [
        subtest(LAST, name="int"),
        subtest(f"{DEVICE_TYPE}:{LAST}", name="str"),
        subtest(torch.device(DEVICE_TYPE, LAST), name="device"),
    ],
)


class TestAccelerator(OpenRegTestCase):
    def test_current_accelerator_is_the_device(self):
        self.assertEqual(torch.accelerator.current_accelerator(), torch.device(DEVICE_TYPE))
        self.assertEqual(
            torch.accelerator.current_accelerator(check_available=True), torch.device(DEVICE_TYPE)
        )

    def test_accelerator_is_available_with_all_devices(self):
        self.assertTrue(torch.accelerator.is_available())
        self.assertEqual(torch.accelerator.device_count(), DEVICE_COUNT)

    def test_accelerator_without_devices_is_not_available(self):
        output = run_child(
            """
                    import torch
                    a = torch.accelerator
                    print(a.is_available(), a.device_count(), a.current_accelerator(True))
                    """,
            {"OPENREG_DEVICE_COUNT": "0"},
        )
        self.assertEqual(output.strip(), "False 0 None")

    @SPELLINGS
    def test_set_device_index_accepts(self, device):
        torch.accelerator.set_device_index(device)
        try:
            self.assertEqual(torch.accelerator.current_device_index(), LAST)
            self.assertEqual(torch.openreg.current_device(), LAST)
        finally:
            torch.accelerator.set_device_index(0)

    def test_set_device_index_refuses_an_index_that_is_out_of_range(self):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            torch.accelerator.set_device_index(DEVICE_COUNT)

    def test_set_device_index_ignores_a_negative_index(self):
        torch.accelerator.set_device_index(-1)
        self.assertEqual(torch.accelerator.current_device_index(), 0)

    def test_old_names_of_the_device_index_work(self):
        with self.assertWarns(FutureWarning):
            torch.accelerator.set_device_idx(0)
        with self.assertWarns(FutureWarning):
            self.assertEqual(torch.accelerator.current_device_idx(), 0)

    def test_device_index_selects_and_restores(self):
        with torch.accelerator.device_index(LAST):
            self.assertEqual(torch.accelerator.current_device_index(), LAST)
        self.assertEqual(torch.accelerator.current_device_index(), 0)
        with torch.accelerator.device_index(None):
            self.assertEqual(torch.accelerator.current_device_index(), 0)

    @SPELLINGS
    def test_capability_names_the_types_that_tensors_can_have(self, device):
        types = torch.accelerator.get_device_capability(device)["supported_dtypes"]
        self.assertLessEqual(
            {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool},
            types,
        )
        quantized = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
        self.assertLessEqual(quantized, types)
        for dtype in types - quantized:
            x = torch.zeros(2, dtype=dtype, device=DEVICE_TYPE)
            self.assertEqual(x.dtype, dtype)
            self.assertEqual(x.cpu().dtype, dtype)
        x = torch.ones(2, 3, device=DEVICE_TYPE)
        for dtype in quantized:
            if dtype in (torch.quint4x2, torch.quint2x4):  # by channels only
                channels = torch.ones(2, device=DEVICE_TYPE), torch.zeros(2, device=DEVICE_TYPE)
                y = torch.quantize_per_channel(x, *channels, 0, dtype)
            else:
                y = torch.quantize_per_tensor(x, 1.0, 0, dtype)
            self.assertEqual(y.dtype, dtype)
            self.assert_bit_equal(y.cpu().dequantize(), x)

    @SPELLINGS
    def test_current_stream_is_that_of_the_module(self, device):
        self.assertEqual(
            torch.accelerator.current_stream(device), torch.openreg.current_stream(device)
        )
        stream = torch.openreg.Stream(device)
        with stream:
            self.assertEqual(torch.accelerator.current_stream(), stream)

    def test_set_stream_selects_stream_and_device(self):
        stream = torch.Stream(f"{DEVICE_TYPE}:{LAST}")
        torch.accelerator.set_stream(stream)
        try:
            self.assertEqual(torch.openreg.current_stream(), stream)
            self.assertEqual(torch.openreg.current_device(), LAST)
        finally:
            torch.accelerator.set_stream(torch.openreg.default_stream(LAST))
            torch.accelerator.set_device_index(0)

    @SPELLINGS
    def test_synchronize_waits_for_the_device_given(self, device):
        stream = torch.openreg.Stream(LAST)
        with StreamGate(stream) as gate:
            gate.wait_until_reached()
            gate.open()
            torch.accelerator.synchronize(device)
            self.assertTrue(stream.query())

    @requires_two_devices
    def test_synchronize_does_not_wait_for_other_devices(self):
        with StreamGate(torch.openreg.Stream(1)):
            torch.accelerator.synchronize(0)
            torch.accelerator.synchronize()

    @parametrize(
        "use",
        [
            "torch.openreg.set_device(0); stream = torch.openreg.current_stream()",
            "torch.openreg.init(); stream = torch.openreg.current_stream()",
            f"stream = torch.Stream('{DEVICE_TYPE}')",
            "from interfaces import extension\n"
            "extension().get_stream(torch.device('openreg:0'))\n"
            "stream = torch.openreg.current_stream()",
            "from interfaces import extension\n"
            "extension().use_device_without_gil(0)\n"
            "stream = torch.openreg.current_stream()",
        ],
        name_fn=lambda use: "".join(c if c.isalnum() else "_" for c in use)[:48],
    )
    def test_synchronize_before_the_first_tensor_waits(self, use):
        if "extension" in use and DEVICE_TYPE != "openreg":
            self.skipTest("the extension is for the device type openreg")
        from interfaces import extension_setting

        settings = extension_setting() if "extension" in use else {}
        run_child(
            "import threading, torch\n"
            "from torch_openreg.testing import StreamGate\n"
            f"{use}\n"
            "gate = StreamGate(stream)\n"
            "waiting = threading.Thread(target=torch.accelerator.synchronize, args=(0,))\n"
            "with gate:\n"
            "    waiting.start()\n"
            "    waiting.join(0.2)\n"
            "    assert waiting.is_alive(), 'synchronize did not wait'\n"
            "waiting.join()\n"
            "print('done')\n",
            settings,
        )

    def test_synchronize_before_use_does_nothing(self):
        output = run_child("import torch; torch.accelerator.synchronize(); print('done')")
        self.assertEqual(output.strip(), "done")

    def test_streams_and_events_without_a_device_are_the_device_s(self):
        stream, event = torch.Stream(), torch.Event(enable_timing=True)
        self.assertEqual(stream.device, torch.device(f"{DEVICE_TYPE}:0"))
        with stream:
            event.record()
        event.synchronize()
        self.assertEqual(event.device.type, DEVICE_TYPE)
        self.assertGreaterEqual(event.elapsed_time(event), 0)

    def test_other_devices_are_refused(self):
        for function in (
            torch.accelerator.set_device_index,
            torch.accelerator.current_stream,
            torch.accelerator.synchronize,
            torch.accelerator.memory_allocated,
        ):
            with self.assertRaisesRegex(ValueError, "doesn't match the current accelerator"):
                function("cpu")

    def test_graph_is_captured_and_replayed(self):
        x = torch.zeros(3, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        graph = torch.accelerator.Graph()
        with torch.Stream(DEVICE_TYPE), graph:
            x.add_(1)
        for _ in range(3):
            graph.replay()
        self.assertEqual(x.tolist(), [3.0] * 3)


class TestAcceleratorMemory(OpenRegTestCase):
    @SPELLINGS
    def test_memory_functions_agree_with_the_module(self, device):
        x = torch.empty(3 * MIB, dtype=torch.uint8, device=device)
        ours, theirs = torch.openreg, torch.accelerator
        self.assertEqual(theirs.memory_stats(device), ours.memory_stats(device))
        for name in (
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
        ):
            value = getattr(theirs, name)(device)
            self.assertGreaterEqual(value, 3 * MIB)
            self.assertEqual(value, getattr(ours, name)(device))
        self.assertEqual(theirs.get_memory_info(device), ours.mem_get_info(device))
        del x

    def test_resets_reset(self):
        x = torch.empty(5 * MIB, dtype=torch.uint8, device=DEVICE_TYPE)
        del x
        torch.accelerator.reset_peak_memory_stats()
        self.assertEqual(
            torch.accelerator.max_memory_allocated(), torch.accelerator.memory_allocated()
        )
        torch.accelerator.reset_accumulated_memory_stats()
        self.assertEqual(torch.accelerator.memory_stats()["allocated_bytes.all.allocated"], 0)

    def test_empty_cache_gives_memory_back(self):
        x = torch.empty(50 * MIB, dtype=torch.uint8, device=DEVICE_TYPE)
        del x
        before = torch.accelerator.get_memory_info()[0]
        torch.accelerator.empty_cache()
        self.assertGreaterEqual(torch.accelerator.get_memory_info()[0], before + 50 * MIB)

    def test_empty_host_cache_gives_pinned_memory_back(self):
        x = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
        del x
        torch.accelerator.empty_host_cache()
        self.assertTrue(torch.empty(MIB, dtype=torch.uint8, pin_memory=True).is_pinned())

    def test_an_index_out_of_range_is_refused_also_before_use(self):
        run_child(
            """
            import inspect
            import torch
            from common import OUT_OF_RANGE_TEXT
            import re

            accelerator, openreg = torch.accelerator, torch.openreg
            functions = [
                accelerator.current_stream, accelerator.get_device_capability,
                accelerator.get_memory_info, accelerator.max_memory_allocated,
                accelerator.max_memory_reserved, accelerator.memory_allocated,
                accelerator.memory_reserved, accelerator.memory_stats,
                accelerator.reset_accumulated_memory_stats, accelerator.reset_peak_memory_stats,
                accelerator.set_device_index, accelerator.synchronize,
                lambda index: accelerator.device_index(index).__enter__(),
            ]
            # Of ours, all that take a device and nothing else that must be given.
            for module in (openreg, openreg.memory, openreg.random):
                for name in module.__all__:
                    function = getattr(module, name)
                    if not inspect.isfunction(function):
                        continue
                    parameters = list(inspect.signature(function).parameters.values())
                    needed = [p.name for p in parameters if p.default is p.empty]
                    if any(p.name == "device" for p in parameters) and needed in ([], ["device"]):
                        functions.append(
                            lambda index, function=function: function(device=index)
                        )
            assert len(functions) > 25, len(functions)
            for _ in range(2):
                for function in functions:
                    try:
                        function(12)
                    except RuntimeError as error:
                        text = str(error)
                        assert re.search(OUT_OF_RANGE_TEXT, text) or "offset" in text, error
                    else:
                        raise AssertionError(function)
                torch.ones(1, device="openreg")
            """,
            {"OPENREG_DEVICE_COUNT": "2"},
        )

    def test_statistics_before_use_are_zero(self):
        output = run_child("""
                    import torch
                    a = torch.accelerator
                    a.empty_cache()
                    a.reset_peak_memory_stats()
                    print(set(a.memory_stats().values()) - {-1})  # -1: max_split_size, no limit
                    print(a.memory_allocated(), a.max_memory_reserved())
                    """)
        self.assertEqual(output.split("\n")[:2], ["{0}", "0 0"])


instantiate_parametrized_tests(TestAccelerator)
instantiate_parametrized_tests(TestAcceleratorMemory)

if __name__ == "__main__":
    run_tests()
