"""Compiled functions give what Inductor gives on the CPU: the same kernels, the same bits."""

import torch
from common import (
    DEVICE_TYPE,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)
from extras.inductor.compiled import CompiledTestCase
from extras.inductor.functions import CASES, leaf, normal


class TestFunctions(CompiledTestCase):
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
instantiate_parametrized_tests(TestTraining)

if __name__ == "__main__":
    run_tests()
