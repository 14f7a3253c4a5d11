"""Operators of others: those of the namespace ``openreg``, and operators written in Python."""

import pytest
import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

pytestmark = pytest.mark.sample(0.5)

custom_abs = torch.ops.openreg.custom_abs
returns_self = torch.ops.openreg.custom_autograd_fn_returns_self
aliasing = torch.ops.openreg.custom_autograd_fn_aliasing

DEVICES = parametrize("device", ["cpu", DEVICE_TYPE])
AUTOGRAD_FUNCTIONS = parametrize(
    "function", [subtest(returns_self, name="returns_self"), subtest(aliasing, name="aliasing")]
)
BACKENDS = parametrize("backend", ["eager", "aot_eager"])

# On devices outside of torch, test_autograd_registration raises NotImplementedError.
CHECKS = {
    "cpu": (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    ),
    DEVICE_TYPE: ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
}

ABS_DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


def samples():
    """Inputs of all layouts, by name."""
    x = torch.linspace(-3, 3, 120).reshape(2, 3, 4, 5)
    return {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(0, 3),
        "strided": x[:, ::2, 1:, ::3],
        "expanded": x[:1].expand(6, 3, 4, 5),
        "0_dimensions": torch.tensor(-2.5),
        "no_elements": torch.empty(3, 0, 2),
    }


class CustomOpTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()


class TestCustomAbs(CustomOpTestCase):
    @DEVICES
    @parametrize("dtype", ABS_DTYPES)
    def test_result_is_that_of_abs(self, device, dtype):
        x = torch.tensor([-3, -1, 0, 2, 100]).to(dtype)
        if dtype.is_complex:
            x = x + 2j
        actual = custom_abs(x.to(device))
        self.assertEqual(actual.dtype, x.abs().dtype)
        self.assert_bit_equal(actual, x.abs())

    @DEVICES
    @parametrize("name", list(samples()))
    def test_layout_of_the_result_is_that_of_abs(self, device, name):
        x = samples()[name]
        actual, expected = custom_abs(x.to(device)), x.to(device).abs()
        self.assertEqual(actual.device, expected.device)
        self.assertEqual(actual.stride(), expected.stride())
        self.assert_bit_equal(actual, x.abs())

    def test_special_values_are_those_of_abs(self):
        x = torch.tensor([float("-inf"), float("inf"), float("nan"), -0.0])
        actual = custom_abs(x.to(DEVICE_TYPE)).cpu()
        self.assertEqual(actual.view(torch.int32), x.abs().view(torch.int32))

    def test_conjugated_and_negated_views_are_taken(self):
        x = torch.tensor([1 + 2j, -3 - 4j])
        self.assert_bit_equal(custom_abs(x.to(DEVICE_TYPE).conj()), x.abs())
        self.assert_bit_equal(custom_abs(x.to(DEVICE_TYPE).conj().imag), x.imag.abs())

    def test_call_returns_before_the_kernel_ran(self):
        x = torch.tensor([-1.0, 2.0], device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate() as gate:
            y = custom_abs(x)
            x.fill_(-7)
            self.assertFalse(torch.openreg.current_stream().query())
            gate.open()
            self.assertEqual(y.tolist(), [1.0, 2.0])

    def test_kernel_runs_on_the_current_stream(self):
        x = torch.tensor([-1.0, 2.0], device=DEVICE_TYPE)
        torch.openreg.synchronize()
        side = torch.openreg.Stream()
        with StreamGate(), side:
            y = custom_abs(x)
            side.synchronize()  # would not return if the kernel were after the gate
            self.assertEqual(y.tolist(), [1.0, 2.0])

    @requires_two_devices
    def test_result_is_on_the_device_of_the_input(self):
        x = torch.tensor([-1.0], device=f"{DEVICE_TYPE}:1")
        self.assertEqual(custom_abs(x).device, torch.device(f"{DEVICE_TYPE}:1"))
        self.assertEqual(custom_abs(x).tolist(), [1.0])

    def test_nothing_falls_back(self):
        torch.openreg.reset_fallback_stats()
        x = torch.tensor([-1.0, 2.0], device=DEVICE_TYPE, requires_grad=True)
        custom_abs(x).sum().backward()
        self.assertEqual(torch.openreg.fallback_stats(), {})

    @DEVICES
    @parametrize("dtype", [torch.bool, torch.uint16])
    def test_dtype_without_a_kernel_is_refused_by_the_call(self, device, dtype):
        with self.assertRaisesRegex(NotImplementedError, "abs.* not implemented for"):
            custom_abs(torch.zeros(2, dtype=dtype, device=device))

    @parametrize("dtype", [torch.float32, torch.complex64])
    def test_meta_kernel_gives_shape_type_and_layout(self, dtype):
        x = torch.zeros(2, 3, 4, 5, dtype=dtype).contiguous(memory_format=torch.channels_last)
        meta = custom_abs(x.to("meta"))
        self.assertEqual(meta.device.type, "meta")
        self.assertEqual(
            (meta.shape, meta.stride(), meta.dtype),
            (x.abs().shape, x.abs().stride(), x.abs().dtype),
        )

    def test_meta_kernel_takes_symbolic_sizes(self):
        compiled = torch.compile(custom_abs, backend="aot_eager", dynamic=True, fullgraph=True)
        for size in (4, 7, 9):
            x = torch.arange(-2.0, size - 2.0, device=DEVICE_TYPE)
            self.assert_bit_equal(compiled(x), x.abs())

    @DEVICES
    def test_gradient_is_that_of_abs(self, device):
        x = torch.tensor([-2.0, 0.0, 3.0], device=device, requires_grad=True)
        custom_abs(x).backward(torch.tensor([1.0, 2.0, 3.0], device=device))
        self.assertEqual(x.grad.tolist(), [-1.0, 0.0, 3.0])

    @DEVICES
    @parametrize("dtype", [torch.float64, torch.complex128])
    def test_gradients_are_correct(self, device, dtype):
        x = torch.tensor([-2.0, 0.5, 3.0], dtype=dtype, device=device, requires_grad=True)
        self.assertTrue(gradcheck(custom_abs, x))
        self.assertTrue(gradgradcheck(custom_abs, x))

    def test_no_gradient_is_recorded_where_none_is_wanted(self):
        x = torch.tensor([-1.0], device=DEVICE_TYPE, requires_grad=True)
        with torch.no_grad():
            self.assertFalse(custom_abs(x).requires_grad)
        with torch.inference_mode():
            self.assertEqual(custom_abs(x).tolist(), [1.0])

    @DEVICES
    def test_opcheck_finds_nothing(self, device):
        x = torch.tensor([[-2.0, 0.5], [3.0, -4.0]], device=device)
        for one in (x, x.t(), x.clone().requires_grad_(), x.to(torch.complex64)):
            opcheck(custom_abs.default, (one,), test_utils=CHECKS[device])

    @BACKENDS
    def test_compiled_function_gives_value_and_gradient(self, backend):
        compiled = torch.compile(lambda x: custom_abs(x) * 2, backend=backend, fullgraph=True)
        x = torch.tensor([-2.0, 3.0], device=DEVICE_TYPE, requires_grad=True)
        y = compiled(x)
        self.assertEqual(y.tolist(), [4.0, 6.0])
        y.sum().backward()
        self.assertEqual(x.grad.tolist(), [-2.0, 2.0])


class TestAutogradFunctions(CustomOpTestCase):
    @DEVICES
    @AUTOGRAD_FUNCTIONS
    def test_result_has_the_memory_of_the_input(self, device, function):
        x = torch.tensor([1.0, 2.0], device=device)
        for one in (x, x.clone().requires_grad_()):
            y = function(one)
            self.assertEqual(y.data_ptr(), one.data_ptr())
            self.assert_bit_equal(y, x)

    @DEVICES
    @AUTOGRAD_FUNCTIONS
    def test_gradient_is_half_of_the_incoming_one(self, device, function):
        x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        function(x).backward(torch.tensor([3.0, 5.0], device=device))
        self.assertEqual(x.grad.tolist(), [1.5, 2.5])

    @AUTOGRAD_FUNCTIONS
    def test_gradient_can_be_differentiated_again(self, function):
        x = torch.tensor([1.0, 2.0], device=DEVICE_TYPE, requires_grad=True)
        y = function(x * x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        self.assertEqual(first.tolist(), [1.0, 2.0])
        (second,) = torch.autograd.grad(first.sum(), x)
        self.assertEqual(second.tolist(), [1.0, 1.0])

    @AUTOGRAD_FUNCTIONS
    def test_function_works_in_inference_mode(self, function):
        with torch.inference_mode():
            x = torch.tensor([1.0, 2.0], device=DEVICE_TYPE)
            self.assertEqual(function(x).data_ptr(), x.data_ptr())

    @AUTOGRAD_FUNCTIONS
    def test_call_waits_for_nothing(self, function):
        x = torch.ones(2, device=DEVICE_TYPE, requires_grad=True)
        torch.openreg.synchronize()
        with StreamGate():
            function(x).sum().backward()
            self.assertFalse(torch.openreg.current_stream().query())
        self.assertEqual(x.grad.tolist(), [0.5, 0.5])

    @BACKENDS
    @AUTOGRAD_FUNCTIONS
    def test_compiled_function_gives_value_and_gradient(self, backend, function):
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        x = torch.tensor([1.0, 2.0], device=DEVICE_TYPE, requires_grad=True)
        y = compiled(x)
        self.assertEqual(y.tolist(), [1.0, 2.0])
        y.sum().backward()
        self.assertEqual(x.grad.tolist(), [0.5, 0.5])

    @DEVICES
    @AUTOGRAD_FUNCTIONS
    def test_opcheck_finds_nothing(self, device, function):
        x = torch.tensor([1.0, 2.0], device=device)
        for one in (x, x.clone().requires_grad_()):
            opcheck(function.default, (one,), test_utils=CHECKS[device])


# An operator with a kernel per device, written in operators of torch.
@torch.library.custom_op("openreg_test::smooth_sign", mutates_args=(), device_types="cpu")
def smooth_sign(x: torch.Tensor, width: float) -> torch.Tensor:
    return x * (x * x + width).rsqrt()


@smooth_sign.register_kernel(DEVICE_TYPE)
def _(x: torch.Tensor, width: float) -> torch.Tensor:
    smooth_sign_calls.append(x.device)
    return x * (x * x + width).rsqrt()


@smooth_sign.register_fake
def _(x, width):
    return torch.empty_like(x)


def _keep_input(ctx, inputs, output):
    x, ctx.width = inputs
    ctx.save_for_backward(x)


def _smooth_sign_backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * ctx.width * (x * x + ctx.width).pow(-1.5), None


smooth_sign.register_autograd(_smooth_sign_backward, setup_context=_keep_input)


@smooth_sign.register_vmap
def _(info, in_dims, x, width):
    return smooth_sign(x, width), in_dims[0]


smooth_sign_calls = []


# An operator without a kernel for the device, and one for the CPU.
@torch.library.custom_op("openreg_test::cpu_only", mutates_args=(), device_types="cpu")
def cpu_only(x: torch.Tensor) -> torch.Tensor:
    assert x.device.type == "cpu"
    return x * 3


# An operator that writes its argument.
@torch.library.custom_op("openreg_test::add_row_", mutates_args=("x",))
def add_row_(x: torch.Tensor, row: torch.Tensor) -> None:
    x.add_(row)


class TestPythonOps(CustomOpTestCase):
    def setUp(self):
        super().setUp()
        smooth_sign_calls.clear()

    def test_kernel_of_the_device_is_called(self):
        x = torch.tensor([-3.0, 0.0, 1.0])
        y = smooth_sign(x.to(DEVICE_TYPE), 1.0)
        self.assertEqual(smooth_sign_calls, [torch.device(f"{DEVICE_TYPE}:0")])
        self.assert_bit_equal(y, smooth_sign(x, 1.0))
        self.assertEqual(len(smooth_sign_calls), 1)

    def test_kernel_waits_for_nothing(self):
        x = torch.tensor([-3.0, 1.0], device=DEVICE_TYPE, requires_grad=True)
        torch.openreg.synchronize()
        with StreamGate():
            y = smooth_sign(x, 1.0)
            y.sum().backward()
            self.assertFalse(torch.openreg.current_stream().query())
        on_cpu = x.detach().cpu().requires_grad_()
        smooth_sign(on_cpu, 1.0).sum().backward()
        self.assert_bit_equal(y, smooth_sign(on_cpu, 1.0))
        self.assert_bit_equal(x.grad, on_cpu.grad)

    def test_kernel_runs_on_the_current_stream(self):
        x = torch.tensor([-3.0, 1.0], device=DEVICE_TYPE)
        torch.openreg.synchronize()
        side = torch.openreg.Stream()
        with StreamGate(), side:
            y = smooth_sign(x, 1.0)
            side.synchronize()  # would not return if the kernel were after the gate
        self.assert_bit_equal(y, smooth_sign(x.cpu(), 1.0))

    def test_fake_kernel_serves_the_device(self):
        with torch._subclasses.FakeTensorMode():
            y = smooth_sign(torch.empty(2, 3, device=DEVICE_TYPE), 1.0)
        self.assertEqual((y.shape, y.device), ((2, 3), torch.device(f"{DEVICE_TYPE}:0")))
        self.assertEqual(smooth_sign_calls, [])

    @DEVICES
    def test_gradients_are_correct(self, device):
        x = torch.tensor([-3.0, 0.5, 1.0], dtype=torch.float64, device=device, requires_grad=True)
        self.assertTrue(gradcheck(smooth_sign, (x, 1.0)))
        self.assertTrue(gradgradcheck(smooth_sign, (x, 1.0)))

    @DEVICES
    def test_vmap_calls_the_operator_once(self, device):
        x = torch.tensor([[-3.0, 1.0], [0.0, 4.0], [-1.0, 9.0]], device=device)
        for dim in (0, 1):
            y = torch.vmap(smooth_sign, in_dims=(dim, None), out_dims=dim)(x, 1.0)
            self.assert_bit_equal(y, x * (x * x + 1).rsqrt())
        if device == DEVICE_TYPE:
            self.assertEqual(len(smooth_sign_calls), 2)

    @DEVICES
    def test_opcheck_finds_nothing(self, device):
        x = torch.tensor([-3.0, 1.0], device=device)
        for one in (x, x.clone().requires_grad_()):
            opcheck(smooth_sign, (one, 1.0), test_utils=CHECKS[device])
        opcheck(add_row_, (x, torch.ones(2, device=device)), test_utils=CHECKS[device])

    @BACKENDS
    def test_compiled_function_gives_value_and_gradient(self, backend):
        def double(x):
            return smooth_sign(x, 1.0) * 2

        x = torch.tensor([-3.0, 1.0], device=DEVICE_TYPE, requires_grad=True)
        y = torch.compile(double, backend=backend, fullgraph=True)(x)
        y.sum().backward()
        on_cpu = x.detach().cpu().requires_grad_()
        double(on_cpu).sum().backward()
        self.assert_bit_equal(y, double(on_cpu))
        self.assert_bit_equal(x.grad, on_cpu.grad)

    @BACKENDS
    def test_compiled_function_keeps_the_write_of_an_operator(self, backend):
        def twice(x, row):
            y = x * 1
            add_row_(y, row)
            add_row_(y, row)
            return y

        compiled = torch.compile(twice, backend=backend, fullgraph=True)
        x = torch.zeros(2, 2, device=DEVICE_TYPE)
        row = torch.tensor([1.0, 2.0], device=DEVICE_TYPE)
        self.assertEqual(compiled(x, row).tolist(), [[2.0, 4.0], [2.0, 4.0]])
        self.assertEqual(x.tolist(), [[0.0, 0.0], [0.0, 0.0]])

    def test_written_argument_is_written(self):
        x = torch.zeros(2, 2, device=DEVICE_TYPE)
        add_row_(x, torch.tensor([1.0, 2.0], device=DEVICE_TYPE))
        self.assertEqual(x.tolist(), [[1.0, 2.0], [1.0, 2.0]])

    def test_operator_with_a_cpu_kernel_alone_falls_back(self):
        torch.openreg.reset_fallback_stats()
        y = cpu_only(torch.tensor([1.0, 2.0], device=DEVICE_TYPE))
        self.assertEqual(y.device, torch.device(f"{DEVICE_TYPE}:0"))
        self.assertEqual(y.tolist(), [3.0, 6.0])
        self.assertEqual(torch.openreg.fallback_stats(), {"openreg_test::cpu_only": 1})

    def test_error_of_the_kernel_is_raised_by_the_call(self):
        with self.assertRaisesRegex(RuntimeError, "must match the size"):
            add_row_(torch.zeros(2, device=DEVICE_TYPE), torch.zeros(3, device=DEVICE_TYPE))

    def test_kernel_can_be_added_to_an_operator_of_others(self):
        library = torch.library.Library("openreg_test_late", "DEF")
        self.addCleanup(library._destroy)
        library.define("negate(Tensor x) -> Tensor")
        name = "openreg_test_late::negate"
        torch.library.impl(name, DEVICE_TYPE, lambda x: x * -1, lib=library)
        x = torch.tensor([1.0], device=DEVICE_TYPE)
        self.assertEqual(torch.ops.openreg_test_late.negate(x).tolist(), [-1.0])
        with self.assertRaisesRegex(NotImplementedError, "negate"):
            torch.ops.openreg_test_late.negate(x.cpu())


instantiate_parametrized_tests(TestCustomAbs)
instantiate_parametrized_tests(TestAutogradFunctions)
instantiate_parametrized_tests(TestPythonOps)

if __name__ == "__main__":
    run_tests()
