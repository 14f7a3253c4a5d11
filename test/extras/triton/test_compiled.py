"""Kernels of Triton in functions that torch.compile compiles."""

import pytest
import torch
from common import DEVICE_TYPE, StreamGate, run_program, run_tests
from extras.triton.kernels import HAS_TRITON, TritonTestCase, needs_triton
from torch.utils import _triton

from torch_openreg.dynamo import _interface

pytestmark = pytest.mark.sample(0.4)

if HAS_TRITON:
    import triton
    from extras.triton.kernels import add_kernel


def shifted_sum(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 256),)](x * 2, y, out, x.numel(), BLOCK=256)
    return (out + 1).relu()


def expected_sum(x, y):
    return (x * 2 + y + 1).relu()


@needs_triton
class TestCompiled(TritonTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch._dynamo.reset()
        cls.compiled = staticmethod(torch.compile(shifted_sum, fullgraph=True, dynamic=False))

    def setUp(self):
        super().setUp()
        self.x, self.y = torch.randn(1000), torch.randn(1000)
        self.on_device = self.x.to(DEVICE_TYPE), self.y.to(DEVICE_TYPE)
        self.expected = expected_sum(self.x, self.y)

    def test_kernel_of_the_program_is_part_of_the_graph(self):
        self.assertEqual(self.compiled(*self.on_device).cpu(), self.expected)

    def test_kernel_runs_on_the_stream_that_is_current_at_the_call(self):
        self.compiled(*self.on_device)
        torch.openreg.synchronize()
        side = torch.openreg.Stream()
        with StreamGate(), torch.openreg.stream(side):
            result = self.compiled(*self.on_device)
            side.synchronize()  # the gate holds the default stream alone
            on_host = result.cpu()
        self.assertEqual(on_host, self.expected)

    def test_tensors_of_another_device_than_the_current_one(self):
        other = f"{DEVICE_TYPE}:1"
        result = self.compiled(self.x.to(other), self.y.to(other))
        self.assertEqual(result.device, torch.device(other))
        self.assertEqual(result.cpu(), self.expected)

    def test_operator_of_kernels(self):
        @torch.library.triton_op("openreg_triton_test::add", mutates_args={})
        def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernel = torch.library.wrap_triton(add_kernel)
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
            return out

        self.assertEqual(add(*self.on_device).cpu(), self.x + self.y)
        compiled = torch.compile(lambda x, y: add(x, y) * 3, fullgraph=True)
        self.assertEqual(compiled(*self.on_device).cpu(), (self.x + self.y) * 3)


@needs_triton
class TestQuestions(TritonTestCase):
    def test_torch_makes_no_kernels_of_its_own(self):
        import torch._dynamo.variables.builder  # noqa: F401  (its import changes the function)

        self.assertFalse(_triton.has_triton())
        asking = {"__name__": "torch._dynamo.variables.builder", "has_triton": _triton.has_triton}
        self.assertTrue(eval("has_triton()", asking))

    def test_number_of_a_stream_is_that_of_the_launcher(self):
        raw = _interface.OpenRegInterface.get_raw_stream
        self.assertEqual(raw(0), 0)
        side = torch.openreg.Stream()
        with torch.openreg.stream(side):
            self.assertEqual(raw(0), side.native_handle)
            self.assertEqual(raw(0), triton.runtime.driver.active.get_current_stream(0))

    def test_processes_that_compile_choose_our_target(self):
        code = f"""
            import torch
            import torch._inductor.runtime.triton_heuristics as heuristics
            from triton.compiler.compiler import make_backend
            from triton.runtime import driver

            heuristics.triton_helpers.set_driver_to_gpu()
            target = heuristics.GPUTarget({DEVICE_TYPE!r}, 80, 32)
            print(type(driver.active).__name__, type(make_backend(target)).__name__)
        """
        output = run_program(code, {"OPENREG_DEVICE_TYPE": DEVICE_TYPE}).stdout
        self.assertEqual(output, "OpenRegDriver OpenRegBackend\n")


if __name__ == "__main__":
    run_tests()
