"""Streams and events inside compiled functions, and settings of Inductor that change kernels."""

import tempfile

import pytest
import torch
from common import (
    DEVICE_TYPE,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)
from extras.inductor.compiled import CompiledTestCase
from torch._inductor.utils import run_and_get_code

pytestmark = pytest.mark.sample(0.067)


class TestStreams(CompiledTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.randn(64)
        self.on_device = self.x.to(DEVICE_TYPE)

    def test_side_stream_inside_a_graph(self):
        side = torch.Stream(device=DEVICE_TYPE)

        def function(x):
            y = x + 1
            side.wait_stream(torch.accelerator.current_stream())
            with side:
                z = y * 2
            torch.accelerator.current_stream().wait_stream(side)
            return z + y

        compiled = torch.compile(function, fullgraph=True)
        self.assert_bit_equal(compiled(self.on_device), (self.x + 1) * 3)
        with StreamGate() as gate:
            result = compiled(self.on_device)
            self.assertFalse(side.query())  # it waits for the stream of the gate
            gate.open()
        self.assert_bit_equal(result, (self.x + 1) * 2 + (self.x + 1))

    def test_event_is_recorded_behind_the_kernels_before_it(self):
        def function(x):
            event = torch.Event(device=DEVICE_TYPE)
            y = x + 1
            event.record()
            event.wait()
            return y * 2 + y

        result, (code,) = run_and_get_code(torch.compile(function, fullgraph=True), self.on_device)
        self.assert_bit_equal(result, (self.x + 1) * 2 + (self.x + 1))
        self.assertLess(code.index(".launch("), code.index("record_event.default("))

    @requires_two_devices
    def test_side_streams_of_two_devices_in_one_graph(self):
        sides = [torch.Stream(device=f"{DEVICE_TYPE}:{i}") for i in range(2)]
        # Dynamo has the current stream of one device; see docs/compile.md.
        currents = [torch.accelerator.current_stream(i) for i in range(2)]

        def function(x, y):
            results = []
            for side, current, one in zip(sides, currents, (x + 1, y * 2), strict=True):
                side.wait_stream(current)
                with side:
                    results.append(one.sin() - 1)
                current.wait_stream(side)
            a, b = results
            return a + b.to(a.device), b + a.to(b.device)

        y = torch.randn(64)
        arguments = [self.on_device.to(f"{DEVICE_TYPE}:0"), y.to(f"{DEVICE_TYPE}:1")]
        compiled = torch.compile(function)
        expected = (self.x + 1).sin() - 1 + ((y * 2).sin() - 1)
        for _ in range(2):
            a, b = compiled(*arguments)
            self.assertEqual((a.device.index, b.device.index), (0, 1))
            self.assertEqual(a.cpu(), expected)
            self.assertEqual(b.cpu(), expected)
        with StreamGate(torch.openreg.current_stream(1)) as gate:
            results = compiled(*arguments)
            self.assertFalse(sides[1].query())  # it waits for the stream of the gate
            gate.open()
        self.assertEqual(results[0].cpu(), expected)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 128)
        self.second = torch.nn.Linear(128, 32)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class TestSettings(CompiledTestCase):
    @pytest.mark.slow("max_autotune")
    @parametrize(
        "settings, kernel",
        [
            subtest(({"freezing": True}, "extern_kernels."), name="freezing"),
            subtest(
                (
                    {"freezing": True, "max_autotune": True, "max_autotune_gemm_backends": "CPP"},
                    "micro_gemm",
                ),
                name="max_autotune",
            ),
        ],
    )
    def test_results_are_those_of_the_cpu_and_the_call_returns_before_them(self, settings, kernel):
        torch.manual_seed(0)
        model, x = Layers().eval(), torch.randn(16, 64)
        with torch._inductor.config.patch(settings), torch.no_grad():
            expected = torch.compile(model)(x)
            torch._dynamo.reset()
            compiled, on_device = torch.compile(model.to(DEVICE_TYPE)), x.to(DEVICE_TYPE)
            result, (code,) = run_and_get_code(compiled, on_device)
            self.assertIn(kernel, code)
            self.assert_bit_equal(result, expected)
            with StreamGate() as gate:
                result = compiled(on_device)
                self.assertFalse(torch.openreg.current_stream().query())
                gate.open()
        self.assert_bit_equal(result, expected)

    def test_exported_program_is_saved_and_compiled_where_it_is_loaded(self):
        model, x = Layers().eval(), torch.randn(16, 64)
        expected = torch.compile(torch.export.export(model, (x,)).module())(x)
        model, x = model.to(DEVICE_TYPE), x.to(DEVICE_TYPE)
        with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
            torch.export.save(torch.export.export(model, (x,)), file.name)
            loaded = torch.export.load(file.name).module()
        self.assert_bit_equal(torch.compile(loaded)(x), expected)


instantiate_parametrized_tests(TestSettings)

if __name__ == "__main__":
    run_tests()
