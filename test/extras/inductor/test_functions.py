"""Compiled functions give what Inductor gives on the CPU: the same kernels, the same bits."""

import functools
import inspect
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)
from extras.inductor.compiled import CompiledTestCase
from extras.inductor.functions import CASES, leaf, normal
from torch._subclasses.fake_impls import op_implementations_dict
from torch.utils.checkpoint import checkpoint

from torch_openreg.extras.inductor import _kernels

pytestmark = pytest.mark.sample(0.027)

CAPTURABLE_OPTIMIZERS = [
    value
    for value in vars(torch.optim).values()
    if isinstance(value, type) and "capturable" in inspect.signature(value).parameters
]


class TestFunctions(CompiledTestCase):
    @pytest.mark.slow("small_constant")
    @parametrize("case", [subtest(case, name=name) for name, case in CASES.items()])
    def test_results_and_gradients_are_those_of_the_cpu(self, case):
        torch.manual_seed(0)
        with torch._dynamo.config.patch(capture_scalar_outputs=case.captures_scalars):
            self.compare_with_cpu(
                case.function,
                case.arguments(),
                same_kernels=case.same_kernels,
                same_bits=case.same_bits,
                **case.options,
            )

    @requires_two_devices
    def test_second_device(self):
        outcome = self.compare_with_cpu(
            torch.nn.functional.gelu, [leaf(8, 8)], device=f"{DEVICE_TYPE}:1"
        )
        self.assertEqual(outcome.results[0].device, torch.device(DEVICE_TYPE, 1))

    @requires_two_devices
    def test_graph_on_two_devices(self):
        def exchange(x, y):
            return x + 1 + y.to(x.device), y * 2 + x.to(y.device)

        x, y = normal(5), normal(5)
        a, b = torch.compile(exchange)(x.to(f"{DEVICE_TYPE}:0"), y.to(f"{DEVICE_TYPE}:1"))
        self.assertEqual((a.device.index, b.device.index), (0, 1))
        self.assert_bit_equal(a, x + 1 + y)
        self.assert_bit_equal(b, y * 2 + x)

    @requires_two_devices
    def test_graph_without_inputs_is_on_the_device_that_is_current(self):
        with torch.openreg.device(1):
            result = torch.compile(lambda: torch.arange(3, device=DEVICE_TYPE) + 1)()
        self.assertEqual(result.device.index, 1)
        self.assert_bit_equal(result, torch.tensor([1, 2, 3]))

    def test_graph_with_work_on_the_host_and_on_the_device(self):
        x, y = normal(5), normal(5)
        a, b = torch.compile(lambda x, y: (x * 2 + 1, y * 3 - 1))(x.to(DEVICE_TYPE), y)
        self.assertEqual((a.device.type, b.device.type), (DEVICE_TYPE, "cpu"))
        self.assertEqual(a.cpu(), x * 2 + 1)
        self.assertEqual(b, y * 3 - 1)

    @torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
    def test_sizes_and_scalars_that_depend_on_data(self):
        for function in (
            lambda x: x * x.sum().item(),
            lambda x: x.nonzero() + 1,
            lambda x: x[x > 0] * 2,
        ):
            self.compare_with_cpu(function, [normal(9)])

    def test_sizes_that_change_compile_once_more_and_then_no_more(self):
        counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
        compiled = torch.compile(lambda x: (x * 2).sum(-1), backend=counter)
        for size in (3, 4, 5, 6):
            x = normal(2, size)
            self.assertEqual(compiled(x.to(DEVICE_TYPE)).cpu(), (x * 2).sum(-1))
        self.assertEqual(counter.frame_count, 2)

    @pytest.mark.slow
    def test_autocast(self):
        def product(x, y):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                return (x @ y).relu()

        self.compare_with_cpu(product, [leaf(8, 8), leaf(8, 8)])

    def test_program_s_name_of_the_cpu_with_an_index_is_the_cpu(self):
        def mixed(x):
            return x + 1, torch.zeros(3, device="cpu:0") + 1

        a, b = torch.compile(mixed)(normal(3).to(DEVICE_TYPE))
        self.assertEqual((a.device.type, b.device.type), (DEVICE_TYPE, "cpu"))
        self.assertEqual(b, torch.ones(3))


class TestHostKernels(CompiledTestCase):
    """A compiled kernel of the CPU never has an argument in device memory."""

    def test_number_on_the_device_moves_a_list_of_cpu_numbers_there(self):
        def with_number(x, number):
            added = torch._foreach_add([x], number, alpha=2)  # the number remains a tensor
            return *added, *torch._foreach_mul([x], number), *torch._foreach_div([x], number)

        x, number = torch.tensor(3.0), torch.tensor(0.5)
        results = torch.compile(with_number)(x, number.to(DEVICE_TYPE))
        self.assertEqual([one.device.type for one in results], [DEVICE_TYPE] * 3)
        self.assertEqual([one.cpu() for one in results], list(with_number(x, number)))

    @parametrize("name", ["_foreach_mul", "_foreach_mul_"])
    def test_list_of_cpu_tensors_with_a_number_on_the_device_is_refused(self, name):
        compiled = torch.compile(lambda x, number: getattr(torch, name)([x], number))
        with self.assertRaisesRegex(Exception, f"(?s){DEVICE_TYPE}:0.*{name} ") as raised:
            compiled(normal(4), torch.tensor(0.5, device=DEVICE_TYPE))
        self.assertRegex(str(raised.exception), r"\bcpu\b")

    def test_kernel_is_refused_whose_operator_has_the_wrong_device(self):
        operator = torch.ops.aten._foreach_mul.Tensor
        known = {key: value for key, value in op_implementations_dict.items() if key != operator}
        with mock.patch.dict(op_implementations_dict, known, clear=True):
            compiled = torch.compile(lambda x, number: torch._foreach_mul([x], number)[0])
            with self.assertRaisesRegex(
                Exception, rf"kernel cpp_fused__foreach_mul_0 on cpu .* on {DEVICE_TYPE}:0"
            ):
                compiled(normal(4), torch.tensor(0.5, device=DEVICE_TYPE))

    def test_kernel_refuses_arguments_on_the_device_when_it_runs(self):
        kernel = None

        def keep(*args):
            nonlocal kernel
            kernel = define_kernel(*args)
            return kernel

        define_kernel = _kernels.define_kernel
        with mock.patch.object(_kernels, "define_kernel", keep):
            torch.compile(lambda x, y: (x + 1, y.sin()))(
                torch.ones(3, device=DEVICE_TYPE), normal(3)
            )
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        x = torch.ones(3, device=DEVICE_TYPE)
        with self.assertRaisesRegex(
            RuntimeError, f"cpp_fused.*: expected CPU tensors, .*{x.device}"
        ):
            kernel(x, x)


RANDOM_FACTORS = {
    "dropout": lambda x: F.dropout(torch.ones_like(x)),
    "multinomial": lambda x: torch.multinomial(torch.ones_like(x), x.shape[-1]),
    "randperm": lambda x: torch.randperm(x.shape[-1], device=x.device),
}


class TestRandomOperatorsThatAreComputedAgain(CompiledTestCase):
    """A checkpointed region draws the same numbers again in the backward pass."""

    @parametrize("name", RANDOM_FACTORS)
    @parametrize(
        "way",
        [
            subtest(("aot_eager", {}), name="eager"),
            subtest(("inductor", {}), name="inductor"),
            subtest(("inductor", {"fallback_random": True}), name="inductor_fallback"),
        ],
    )
    @parametrize("index", range(DEVICE_COUNT))
    def test_gradient_has_the_numbers_of_the_result(self, name, way, index):
        backend, options = way

        def checkpointed(x):
            return checkpoint(lambda x: x.sin() * RANDOM_FACTORS[name](x), x, use_reentrant=False)

        x = normal(8, 8).to(f"{DEVICE_TYPE}:{index}").requires_grad_()
        with torch._inductor.config.patch(options):
            y = torch.compile(checkpointed, backend=backend, fullgraph=True)(x)
            (gradient,) = torch.autograd.grad(y.sum(), x)
        x, y = x.detach().cpu(), y.detach().cpu()
        self.assertEqual(gradient.cpu(), y / x.sin() * x.cos())


class TestDeviceFunctions(CompiledTestCase):
    """Functions of the device module inside a compiled function."""

    module = getattr(torch, DEVICE_TYPE)

    def compiled(self, function, backend="eager"):
        return torch.compile(function, backend=backend, fullgraph=True)

    @parametrize("name", ["is_available", "is_initialized", "current_device"])
    def test_answer_is_that_outside(self, name):
        function = getattr(self.module, name)
        _, answer = self.compiled(lambda x: (x + 1, function()))(torch.ones(2, device=DEVICE_TYPE))
        self.assertEqual(answer, function())

    def test_properties_are_those_outside(self):
        def size(x):
            return x + 1, self.module.get_device_properties(x.device).total_memory

        _, answer = self.compiled(size)(torch.ones(2, device=DEVICE_TYPE))
        self.assertEqual(answer, self.module.get_device_properties(0).total_memory)

    @requires_two_devices
    def test_function_is_compiled_again_for_another_current_device(self):
        compiled = self.compiled(lambda x: x + self.module.current_device(), "inductor")
        for index in range(2):
            with self.module.device(index):
                self.assertEqual(compiled(torch.zeros(2, device=DEVICE_TYPE)).tolist(), [index] * 2)

    @requires_two_devices
    def test_device_is_selected_inside(self):
        def on_second(x):
            with self.module.device(1):
                y = torch.ones(3, device=DEVICE_TYPE) + self.module.current_device()
            return y, x + self.module.current_device()

        y, x = self.compiled(on_second)(torch.zeros(2, device=DEVICE_TYPE))
        self.assertEqual((y.device.index, x.device.index), (1, 0))
        self.assertEqual((y.tolist(), x.tolist()), ([2, 2, 2], [0, 0]))

    @parametrize("arguments", [subtest((), name="none"), subtest((0,), name="index")])
    def test_synchronize_waits_where_it_is_called(self, arguments):
        def work(x):
            y = x * 2
            self.module.synchronize(*arguments)
            return y

        compiled = self.compiled(work)
        x = torch.ones(2, device=DEVICE_TYPE)
        compiled(x)
        self.assertTrue(self.module.current_stream().query())

    @parametrize("backend", ["eager", "inductor"])
    def test_streams_and_events(self, backend):
        def on_two_streams(x):
            side = self.module.Stream()
            side.wait_stream(self.module.current_stream())
            with self.module.stream(side):
                y = x * 2
            event = self.module.Event()
            event.record(side)
            self.module.current_stream().wait_event(event)
            return y + 1

        x = normal(16)
        result = self.compiled(on_two_streams, backend)(x.to(DEVICE_TYPE))
        self.assertEqual(result.cpu(), x * 2 + 1)


class TestProductsWithResultDtype(CompiledTestCase):
    @parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_result_is_that_of_wider_factors(self, dtype):
        x, y = normal(4, 5).to(dtype), normal(5, 3).to(dtype)
        compiled = torch.compile(lambda x, y: torch.mm(x, y, out_dtype=torch.float32) + 1)
        result = compiled(x.to(DEVICE_TYPE), y.to(DEVICE_TYPE))
        self.assert_bit_equal(result, x.float() @ y.float() + 1)


class TestTraining(CompiledTestCase):
    def train(self, device, optimizer_class, **options):
        torch._dynamo.reset()
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        )
        x, target = torch.randn(6, 8), torch.randn(6, 4)
        model, x, target = model.to(device), x.to(device), target.to(device)
        optimizer = optimizer_class(model.parameters(), lr=0.1, **options)

        @torch.compile
        def loss_of(x, target):
            return torch.nn.functional.mse_loss(model(x), target)

        @torch.compile
        def step():
            optimizer.step()

        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(x, target)
            loss.backward()
            step()
            losses.append(loss.detach().cpu())
        return losses + [one.detach().cpu() for one in model.parameters()]

    @pytest.mark.slow("adamw", "sgd")
    @parametrize(
        "optimizer",
        [
            subtest((torch.optim.SGD, {"momentum": 0.9}), name="sgd"),
            subtest((torch.optim.AdamW, {"foreach": True}), name="adamw"),
        ],
    )
    def test_compiled_steps_of_compiled_optimizers(self, optimizer):
        optimizer_class, options = optimizer
        expected = self.train("cpu", optimizer_class, **options)
        # For CUDA, torch compiles other formulas: Dynamo makes optimizers capturable, and Inductor
        # multiplies and adds in one rounding. Whether the bits differ depends on the processor.
        compare = self.assertEqual if DEVICE_TYPE == "cuda" else self.assert_bit_equal
        for actual, wanted in zip(
            self.train(DEVICE_TYPE, optimizer_class, **options), expected, strict=True
        ):
            compare(actual, wanted)

    def steps(self, optimizer_class, compile_step, **options):
        """Takes three steps with a learning rate on the device; returns the parameter and step."""
        torch.manual_seed(1)
        parameter = torch.nn.Parameter(torch.randn(5).to(DEVICE_TYPE))
        rate = torch.tensor(0.1, device=DEVICE_TYPE)
        optimizer = optimizer_class([parameter], lr=rate, **options)
        step = compile_step(optimizer.step)
        for _ in range(3):
            parameter.grad = parameter.detach() * 2
            step()
        return parameter.detach(), optimizer.state[parameter]["step"]

    def compare_steps_with_eager_mode(self, optimizer_class, backend):
        expected, _ = self.steps(optimizer_class, lambda step: step, capturable=True)
        actual, step = self.steps(
            optimizer_class, functools.partial(torch.compile, backend=backend)
        )
        self.assertEqual(step.device.type, DEVICE_TYPE)
        self.assertEqual(actual.cpu(), expected.cpu())

    @parametrize("optimizer_class", CAPTURABLE_OPTIMIZERS)
    def test_learning_rate_on_the_device(self, optimizer_class):
        self.compare_steps_with_eager_mode(optimizer_class, "eager")

    @parametrize("optimizer_class", [torch.optim.Adam, torch.optim.AdamW])
    def test_learning_rate_on_the_device_in_kernels(self, optimizer_class):
        self.compare_steps_with_eager_mode(optimizer_class, "inductor")

    @pytest.mark.slow
    def test_compiled_autograd(self):
        def gradient(device):
            torch._dynamo.reset()
            torch.manual_seed(2)
            x = torch.randn(5, 4).to(device).requires_grad_()
            w = torch.randn(4, 4).to(device).requires_grad_()
            with torch._dynamo.compiled_autograd._enable(torch.compile):
                torch.compile(lambda x, w: (x @ w).tanh().square().sum())(x, w).backward()
            return x.grad.cpu(), w.grad.cpu()

        for actual, expected in zip(gradient(DEVICE_TYPE), gradient("cpu"), strict=True):
            self.assert_bit_equal(actual, expected)


instantiate_parametrized_tests(TestFunctions)
instantiate_parametrized_tests(TestDeviceFunctions)
instantiate_parametrized_tests(TestHostKernels)
instantiate_parametrized_tests(TestProductsWithResultDtype)
instantiate_parametrized_tests(TestRandomOperatorsThatAreComputedAgain)
instantiate_parametrized_tests(TestTraining)

if __name__ == "__main__":
    run_tests()
