"""Kernels that Inductor generated, as work on streams: order, memory, errors, graphs."""

import gc
import unittest

import pytest
import torch
from common import DEVICE_TYPE, StreamGate, run_program, run_tests
from extras.inductor.compiled import AbsenceTests, CompiledTestCase, kernel_sources
from memory.allocator_model import ROUNDING

from torch_openreg.extras.inductor import _kernels

pytestmark = pytest.mark.sample(0.025)


def chain(x):
    return (x + 1).relu() * 2


def wanted(x):
    return (x + 1).relu() * 2


class TestOrder(CompiledTestCase):
    def setUp(self):
        super().setUp()
        self.compiled = torch.compile(chain)
        self.x = torch.randn(64)
        self.on_device = self.x.to(DEVICE_TYPE)
        self.compiled(self.on_device)
        torch.openreg.synchronize()

    def test_call_returns_before_its_kernel_has_run(self):
        with StreamGate() as gate:
            result = self.compiled(self.on_device)
            self.assertFalse(torch.openreg.current_stream().query())
            gate.open()
        self.assert_bit_equal(result, wanted(self.x))

    def test_kernels_run_on_the_current_stream(self):
        side = torch.openreg.Stream()
        with StreamGate(), torch.openreg.stream(side):
            result = self.compiled(self.on_device)
            side.synchronize()  # the gate holds the default stream alone
            on_host = result.cpu()
        self.assertEqual(on_host, wanted(self.x))

    def test_memory_that_is_freed_while_a_kernel_waits_is_reused_in_order(self):
        with StreamGate() as gate:
            first = self.compiled(self.on_device)
            address = first.data_ptr()
            second = first * 3
            del first
            third = self.compiled(second)
            gate.open()
        del address
        self.assert_bit_equal(third, wanted(wanted(self.x) * 3))

    def test_capture_and_replay(self):
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            result = self.compiled(self.on_device)
        for scale in (2, 3):
            self.on_device.copy_(self.x * scale)
            graph.replay()
            self.assert_bit_equal(result, wanted(self.x * scale))

    def test_value_of_a_host_scalar_is_that_of_the_call(self):
        compiled = torch.compile(lambda x, s: x * s)
        scalar = torch.tensor(2.0)
        compiled(self.on_device, scalar)
        torch.openreg.synchronize()
        with StreamGate() as gate:
            result = compiled(self.on_device, scalar)
            scalar.fill_(5.0)
            gate.open()
        self.assert_bit_equal(result, self.x * 2)


class TestMemory(CompiledTestCase):
    def test_nothing_but_the_results_is_left(self):
        compiled = torch.compile(lambda x: torch.softmax(x @ x, -1).sum(0))
        x = torch.randn(32, 32, device=DEVICE_TYPE)
        compiled(x)
        gc.collect()
        before = torch.openreg.memory_allocated()
        result = compiled(x)
        self.assertEqual(torch.openreg.memory_allocated() - before, ROUNDING)
        del result
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_fused_chain_has_a_lower_peak_than_eager(self):
        x = torch.randn(1 << 16, device=DEVICE_TYPE)

        def peak(function):
            function(x)
            torch.openreg.reset_peak_memory_stats()
            before = torch.openreg.memory_allocated()
            function(x)
            return torch.openreg.max_memory_allocated() - before

        self.assertEqual(peak(torch.compile(chain)), x.nbytes)
        self.assertGreater(peak(chain), x.nbytes)

    def test_allocation_is_that_of_empty_strided(self):
        tensor = _kernels.empty_strided((2, 3), (1, 2), torch.bfloat16, 0)
        self.assertEqual(
            (tensor.shape, tensor.stride(), tensor.dtype, tensor.device),
            ((2, 3), (1, 2), torch.bfloat16, torch.device(DEVICE_TYPE, 0)),
        )
        with self.assertRaisesRegex(RuntimeError, "device index is out of range"):
            _kernels.empty_strided((2,), (1,), torch.float, 99)
        for arguments in (
            ((2,), (1,), torch.float),
            ([2], (1,), torch.float, 0),
            ((2,), ("a",), torch.float, 0),
            ((2,), (1,), "float", 0),
        ):
            with self.assertRaises(TypeError):
                _kernels.empty_strided(*arguments)

    def test_deterministic_mode_fills_new_memory(self):
        torch.use_deterministic_algorithms(True)
        try:
            tensor = _kernels.empty_strided((3,), (1,), torch.float, 0)
        finally:
            torch.use_deterministic_algorithms(False)
        self.assertTrue(tensor.cpu().isnan().all())


class TestAddresses(CompiledTestCase):
    """An address of the host never reaches a kernel as one of the device, and vice versa."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from torch._inductor.async_compile import AsyncCompile

        source = (
            'extern "C" void kernel(const float* in_ptr0, const float* in_ptr1, float* out_ptr0,'
            " const long ks0) {\n"
            "    for (long i = 0; i < ks0; ++i) out_ptr0[i] = in_ptr0[i] * in_ptr1[0];\n}\n"
        )
        kernel = _kernels.define_kernel(
            AsyncCompile(),
            "cpp_fused_of_a_test",
            ["const float*", "const float*", "float*", "const int64_t"],
            source,
        )
        cls.kernel = kernel.result() if hasattr(kernel, "result") else kernel

    def setUp(self):
        super().setUp()
        self.x = torch.randn(4, device=DEVICE_TYPE)
        self.out = torch.empty(4, device=DEVICE_TYPE)
        self.two = torch.tensor([2.0], device=DEVICE_TYPE)

    def test_tensors_on_the_device(self):
        self.kernel.launch(self.x, self.two, self.out, 4, 0)
        self.assert_bit_equal(self.out, self.x.cpu() * 2)

    def test_scalar_of_the_host(self):
        self.kernel.launch(self.x, torch.tensor(3.0), self.out, 4, 0, (1,))
        self.assert_bit_equal(self.out, self.x.cpu() * 3)

    def test_the_same_kernel_on_the_host(self):
        x, out = torch.randn(4), torch.empty(4)
        self.kernel(x, torch.tensor(3.0), out, 4)
        self.assertEqual(out, x * 3)

    def test_tensor_of_the_host_is_refused(self):
        for x, two, out in (
            (self.x.cpu(), self.two, self.out),
            (self.x, self.two.cpu(), self.out),
            (self.x, self.two, self.out.cpu()),
        ):
            with self.assertRaisesRegex(
                RuntimeError, "cpp_fused_of_a_test: expected argument . on .*, got a tensor on cpu"
            ):
                self.kernel.launch(x, two, out, 4, 0)

    def test_more_than_a_scalar_of_the_host_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "expected argument 1 to be a CPU tensor of one"):
            self.kernel.launch(self.x, torch.ones(2), self.out, 4, 0, (1,))

    def test_tensor_of_the_device_is_no_scalar_of_the_host(self):
        with self.assertRaisesRegex(RuntimeError, "expected argument 1 to be a CPU tensor of one"):
            self.kernel.launch(self.x, self.two, self.out, 4, 0, (1,))

    def test_result_on_the_host_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "CPU tensor of one element that is read"):
            self.kernel.launch(self.x, self.two, torch.empty(1), 4, 0, (2,))

    @unittest.skipIf(torch.openreg.device_count() < 2, "needs two devices")
    def test_tensor_of_another_device_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "got a tensor on .*:0"):
            self.kernel.launch(self.x, self.two, self.out, 4, 1)

    def test_arguments_of_other_types_or_numbers_are_refused(self):
        for arguments in (
            (self.x, self.two, self.out, 0),
            (self.x, self.two, self.out, 4, 0, (), 1),
            (self.x, self.two, self.out, 4, 0, [1]),
            (1, self.two, self.out, 4, 0),
            (self.x, self.two, self.out, "4", 0),
        ):
            with self.assertRaises(TypeError):
                self.kernel.launch(*arguments)


class TestErrors(CompiledTestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.synchronize_quietly)

    def synchronize_quietly(self):
        with __import__("contextlib").suppress(torch.AcceleratorError):
            torch.openreg.synchronize()

    def test_bad_index_comes_out_of_the_next_wait_with_the_kernel_s_name(self):
        compiled = torch.compile(lambda x, i: x[i] * 2)
        x = torch.randn(4, device=DEVICE_TYPE)
        compiled(x, torch.tensor([1, 2], device=DEVICE_TYPE))
        bad = torch.tensor([1, 9], device=DEVICE_TYPE)
        result = compiled(x, bad)
        with self.assertRaisesRegex(torch.AcceleratorError, "cpp_fused_.*index out of bounds"):
            torch.openreg.synchronize()
        del result
        good = compiled(x, torch.tensor([0, 3], device=DEVICE_TYPE))
        self.assert_bit_equal(good, x.cpu()[[0, 3]] * 2)

    def test_integer_division_by_zero(self):
        compiled = torch.compile(lambda x, y: x // y)
        x = torch.arange(4, device=DEVICE_TYPE)
        compiled(x, x)
        with self.assertRaisesRegex(torch.AcceleratorError, "cpp_fused_"):
            torch.openreg.synchronize()

    def test_out_of_memory_is_raised_by_the_call(self):
        compiled = torch.compile(lambda x: x.expand(1 << 20, 1 << 20) + 1)
        with self.assertRaises(torch.OutOfMemoryError):
            compiled(torch.randn(1, device=DEVICE_TYPE))


class TestSanitizer(CompiledTestCase):
    def test_sanitizer_sees_what_a_kernel_reads_and_writes(self):
        output = run_program(
            """
            import torch

            compiled = torch.compile(lambda x: (x + 1).relu() * 2)
            x = torch.randn(64, device="openreg")
            compiled(x)
            torch.openreg.synchronize()
            side = torch.openreg.Stream()
            with torch.openreg.stream(side):
                x.fill_(3.0)
            try:
                compiled(x)
            except torch.openreg.SanitizerError as error:
                print("found", "cpp_fused_" in str(error))
            """,
            {"OPENREG_SANITIZER": "raise"},
            expect_success=False,
        )
        self.assertIn("found True", output.stdout, output.stderr)


class TestAbsence(AbsenceTests, CompiledTestCase):
    def test_registration_is_ours_and_complete(self):
        from torch._inductor.codegen import common

        from torch_openreg.extras.inductor import _cpp_wrapper, _lowering, _wrapper

        common.init_backend_registration()
        codegen = common.device_codegens[DEVICE_TYPE]
        self.assertIs(codegen.wrapper_codegen, _wrapper.OpenRegWrapper)
        self.assertIs(codegen.cpp_wrapper_codegen, _cpp_wrapper.OpenRegCppWrapper)
        self.assertIsNone(codegen.fx_wrapper_codegen)
        self.assertIsInstance(common.custom_backend_passes[DEVICE_TYPE], _lowering.LowerAsCpu)

    def test_compiled_sources_are_seen(self):
        with kernel_sources() as sources:
            torch.compile(chain)(torch.randn(3, device=DEVICE_TYPE))
        self.assertEqual(len(sources), 1)


if __name__ == "__main__":
    run_tests()
