"""Kernels that are loaded at run time, launched by a small extra of the tests."""

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    requires_two_devices,
    run_tests,
)
from interfaces import extension

SCALE = ("written", "read", "integer", "number")


class TestGeneratedKernel(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.extra = extension("aten/generated_kernel_test.cpp")
        cls.observer = extension("core/observer_test.cpp")

    def launch(self, name, kinds, *values, device=0):
        self.extra.launch(name, kinds, values, device)

    def scaled(self, x, factor, kinds=SCALE, name="scale"):
        out = torch.empty_like(x)
        self.launch(name, kinds, out, x, x.numel(), factor, device=x.device.index)
        return out

    def test_kernel_gets_tensors_integers_and_numbers(self):
        x = torch.arange(5.0, device=DEVICE_TYPE)
        self.assertEqual(self.scaled(x, 2.5).cpu(), torch.arange(5.0) * 2.5)

    def test_function_has_its_context(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        self.assertEqual(self.scaled(x, 2.0, name="scale and add ten").tolist(), [12.0] * 3)

    def test_kernel_is_made_once_for_a_name_function_and_parameters(self):
        self.assertTrue(self.extra.is_same("scale", SCALE))

    def test_kernel_runs_in_the_order_of_the_current_stream(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        with StreamGate() as gate:
            x.mul_(3)
            result = self.scaled(x, 2.0)
            self.assertFalse(torch.openreg.current_stream().query())
            gate.open()
        self.assertEqual(result.tolist(), [6.0] * 3)

    @requires_two_devices
    def test_kernel_runs_on_the_device_of_the_launch(self):
        x = torch.ones(3, device=f"{DEVICE_TYPE}:1")
        self.assertEqual(self.scaled(x, 2.0).tolist(), [2.0] * 3)

    def test_value_of_a_cpu_scalar_is_that_of_the_launch_in_each_replay(self):
        x = torch.zeros(1, device=DEVICE_TYPE)
        scalar = torch.tensor(2.0)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            self.launch("scale", SCALE, x, scalar, 1, 3.0)
        scalar.fill_(5.0)
        for _ in range(2):
            x.zero_()
            graph.replay()
            self.assertEqual(x.item(), 6.0)

    def test_each_kind_of_access_is_reported(self):
        tensors = [torch.ones(2, device=DEVICE_TYPE) for _ in range(4)]
        kinds = ("updated", "read", "written", "unknown")
        self.observer.begin(set())
        try:
            self.launch("increment", kinds, *tensors)
        finally:
            self.observer.end()
        accesses = [(t.data_ptr(), 8, kind) for t, kind in zip(tensors, kinds, strict=True)]
        self.assertEqual(self.observer.reports(), [("increment", accesses)])

    def test_skipped_kernel_does_not_run(self):
        x = torch.ones(1, device=DEVICE_TYPE)
        self.observer.begin({"increment"})
        try:
            self.launch("increment", ("updated",), x)
        finally:
            self.observer.end()
        self.assertEqual(x.item(), 1.0)
        self.launch("increment", ("updated",), x)
        self.assertEqual(x.item(), 2.0)

    def test_error_of_a_kernel_has_its_record(self):
        self.launch("fail", ("read",), torch.ones(1, device=DEVICE_TYPE))
        text = "'fail' on .* failed: load past the end, at scale.py:3, address 0x1000"
        with self.assertRaisesRegex(torch.AcceleratorError, text) as raised:
            torch.openreg.synchronize()
        self.assertEqual(raised.exception.error_code, 700)

    def test_exception_of_a_kernel_arrives(self):
        self.launch("throw", ("read",), torch.ones(1, device=DEVICE_TYPE))
        with self.assertRaisesRegex(RuntimeError, "'throw' on .* failed: no good number"):
            torch.openreg.synchronize()

    def test_arguments_are_checked(self):
        x, host = torch.ones(1, device=DEVICE_TYPE), torch.ones(1)
        for text, values in (
            ("expected argument 0 on .*:0, got a tensor on cpu", (host,)),
            ("expected argument 0 to be a CPU tensor of one element that is read", (host[0],)),
            ("expected 1 arguments, got 0", ()),
            ("expected 1 arguments, got more", (x, x)),
        ):
            with self.assertRaisesRegex(RuntimeError, f"increment: {text}"):
                self.launch("increment", ("updated",), *values)
        with self.assertRaisesRegex(RuntimeError, "at most 1024 parameters, got 1025"):
            self.launch("increment", ("number",) * 1025)


if __name__ == "__main__":
    run_tests()
