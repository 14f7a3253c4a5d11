"""Function transforms, parametrizations and utilities for training give the CPU's results."""

import contextlib
import warnings
from typing import Any

import torch
from torch.nn.utils import parametrizations
from torch.nn.utils import parametrize as nn_parametrize
from torch.utils import deterministic

from torch_openreg.conformance.arguments import CPU
from torch_openreg.conformance.cases import (
    instantiate_parametrized_tests,
    needs,
    parametrize,
    subtest,
)
from torch_openreg.conformance.comparison import difference
from torch_openreg.conformance.sweep import DEVICE, DeviceTestCase, seed
from torch_openreg.conformance.target import target

OTHER = target().other()


def numbers(*size: int, device: torch.device = CPU) -> torch.Tensor:
    """The same numbers on each device."""
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(device)


def energy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.exp()).sum()


def rotate(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[0] * x[1], x[1].sin() + x[2], x[2].exp() * x[0]])


def scan_onto_itself(x: torch.Tensor) -> None:
    torch.cumsum(x[:-1], 0, out=x[1:])


def select_onto_itself(x: torch.Tensor) -> None:
    torch.index_select(x, 0, torch.tensor([1], device=x.device), out=x[1:2])


class TestTransforms(DeviceTestCase):
    def test_grad(self) -> None:
        self.assert_same_on_both(lambda device: torch.func.grad(energy)(numbers(5, device=device)))

    def test_grad_of_grad(self) -> None:
        second = torch.func.grad(lambda x: torch.func.grad(energy)(x).sum())
        self.assert_same_on_both(lambda device: second(numbers(5, device=device)))

    def test_grad_and_value_with_auxiliary_results(self) -> None:
        def run(device: torch.device) -> Any:
            function = torch.func.grad_and_value(lambda x: (energy(x), x * 2), has_aux=True)
            return function(numbers(5, device=device))

        self.assert_same_on_both(run)

    @parametrize(
        "transform", [torch.func.jacrev, torch.func.jacfwd], name_fn=lambda one: one.__name__
    )
    def test_jacobian(self, transform: Any) -> None:
        self.assert_same_on_both(lambda device: transform(rotate)(numbers(3, device=device)))

    def test_hessian(self) -> None:
        self.assert_same_on_both(
            lambda device: torch.func.hessian(energy)(numbers(4, device=device))
        )

    def test_vjp_and_jvp(self) -> None:
        def run(device: torch.device) -> Any:
            x, direction = numbers(3, device=device), numbers(3, device=device).cos()
            output, pull = torch.func.vjp(rotate, x)
            return output, pull(direction), torch.func.jvp(rotate, (x,), (direction,))

        self.assert_same_on_both(run)

    @parametrize(
        "function,dims",
        [
            subtest((torch.mm, (0, None)), name="mm"),
            subtest((torch.dot, (0, 1)), name="dot"),
            subtest((torch.linalg.solve, (0, None)), name="solve"),
            subtest((torch.nn.functional.layer_norm, (0, None)), name="layer_norm"),
        ],
    )
    def test_vmap(self, function: Any, dims: Any) -> None:
        def run(device: torch.device) -> Any:
            if function is torch.dot:
                arguments = numbers(4, 6, device=device), numbers(6, 4, device=device)
            elif function is torch.nn.functional.layer_norm:
                arguments = numbers(4, 3, 6, device=device), (6,)
            else:
                arguments = numbers(5, 4, 4, device=device), numbers(4, 3, device=device)
            return torch.func.vmap(function, in_dims=dims)(*arguments)

        self.assert_same_on_both(run)

    def test_vmap_of_an_operator_without_a_batching_rule_falls_back(self) -> None:
        def run(device: torch.device) -> Any:
            x = numbers(3, 5, device=device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.func.vmap(lambda row: torch.bucketize(row.cos(), row.sort()[0]))(x)

        self.assert_same_on_both(run)

    @parametrize("randomness", ["same", "different"])
    def test_vmap_with_random_numbers(self, randomness: Any) -> None:
        def run(device: torch.device) -> Any:
            function = torch.func.vmap(
                lambda row: torch.nn.functional.dropout(row, 0.5), randomness=randomness
            )
            return function(numbers(4, 6, device=device))

        self.assert_same_on_both(run)

    def test_gradients_per_sample(self) -> None:
        def run(device: torch.device) -> Any:
            model = torch.nn.Linear(4, 3)
            for name, parameter in model.named_parameters():
                parameter.data = numbers(*parameter.shape) + len(name)
            model.to(device)
            parameters = {name: one.detach() for name, one in model.named_parameters()}

            def loss(parameters, x, target):
                output = torch.func.functional_call(model, parameters, (x.unsqueeze(0),))
                return torch.nn.functional.cross_entropy(output, target.unsqueeze(0))

            targets = torch.tensor([0, 1, 2, 1, 0], device=device)
            gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
            return gradients(parameters, numbers(5, 4, device=device), targets)

        self.assert_same_on_both(run)

    def test_functional_call_leaves_the_modules_parameters_alone(self) -> None:
        def run(device: torch.device) -> Any:
            model = torch.nn.utils.skip_init(torch.nn.Linear, 3, 2, device=device)
            with torch.no_grad():
                model.weight.copy_(numbers(2, 3))
                model.bias.copy_(numbers(2))
            other = {"weight": numbers(2, 3, device=device) * 2, "bias": model.bias.detach() + 1}
            x = numbers(4, 3, device=device)
            return torch.func.functional_call(model, other, x).detach(), model(x).detach()

        self.assert_same_on_both(run)

    def test_stacked_modules(self) -> None:
        def run(device: torch.device) -> Any:
            models = [torch.nn.Linear(3, 2).to(device) for _ in range(3)]
            for index, model in enumerate(models):
                with torch.no_grad():
                    model.weight.copy_(numbers(2, 3) + index)
                    model.bias.copy_(numbers(2) - index)
            parameters, buffers = torch.func.stack_module_state(models)

            def call(parameters, buffers, x):
                return torch.func.functional_call(models[0], (parameters, buffers), (x,))

            function = torch.func.vmap(call, in_dims=(0, 0, None))
            return function(parameters, buffers, numbers(4, 3, device=device)).detach()

        self.assert_same_on_both(run)


class TestParametrizations(DeviceTestCase):
    @parametrize(
        "parametrization",
        [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal],
        name_fn=lambda one: one.__name__,
    )
    def test_parametrization_trains_as_on_the_cpu(self, parametrization: Any) -> None:
        def run(device: torch.device) -> Any:
            model = torch.nn.Linear(6, 4, device=device)
            with torch.no_grad():
                model.weight.copy_(numbers(4, 6))
                model.bias.copy_(numbers(4))
            seed()
            parametrization(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                model(numbers(5, 6, device=device)).pow(2).sum().backward()
                optimizer.step()
            nn_parametrize.remove_parametrizations(model, "weight")
            return [one.detach() for one in model.parameters()]

        self.assert_same_on_both(run)


class TestTrainingUtilities(DeviceTestCase):
    def gradients_on(self, device):
        parameters = [torch.nn.Parameter(numbers(4, n, device=device)) for n in (1, 3, 5)]
        for parameter in parameters:
            parameter.grad = parameter.detach().exp()
        return parameters

    @parametrize("foreach", [True, False])
    @parametrize("norm_type", [1.0, 2.0, float("inf")])
    def test_clip_grad_norm(self, foreach: Any, norm_type: Any) -> None:
        def run(device: torch.device) -> Any:
            parameters = self.gradients_on(device)
            norm = torch.nn.utils.clip_grad_norm_(parameters, 0.5, norm_type, foreach=foreach)
            return norm, [one.grad for one in parameters]

        self.assert_same_on_both(run)

    @parametrize("foreach", [True, False])
    def test_clip_grad_value(self, foreach: Any) -> None:
        def run(device: torch.device) -> Any:
            parameters = self.gradients_on(device)
            torch.nn.utils.clip_grad_value_(parameters, 0.7, foreach=foreach)
            return [one.grad for one in parameters]

        self.assert_same_on_both(run)

    def test_total_norm_over_gradients(self) -> None:
        def run(device: torch.device) -> Any:
            return torch.nn.utils.get_total_norm([one.grad for one in self.gradients_on(device)])

        self.assert_same_on_both(run)

    def test_parameters_to_vector_and_back(self) -> None:
        def run(device: torch.device) -> Any:
            parameters = self.gradients_on(device)
            vector = torch.nn.utils.parameters_to_vector(parameters).detach()
            torch.nn.utils.vector_to_parameters(vector * 2, parameters)
            return vector, [one.detach() for one in parameters]

        self.assert_same_on_both(run)

    @needs("two devices")
    def test_parameters_on_two_devices_are_no_vector(self) -> None:
        parameters = [numbers(2, device=DEVICE), numbers(2, device=OTHER)]
        with self.assertRaisesRegex(TypeError, "different devices"):
            torch.nn.utils.parameters_to_vector(parameters)

    def test_fused_convolution_and_batch_norm(self) -> None:
        def run(device: torch.device) -> Any:
            seed()
            convolution = torch.nn.Conv2d(3, 4, 3).eval().to(device)
            norm = torch.nn.BatchNorm2d(4).eval().to(device)
            fused = torch.nn.utils.fuse_conv_bn_eval(convolution, norm)
            return fused(numbers(2, 3, 5, 5, device=device)).detach()

        self.assert_same_on_both(run)

    def test_stochastic_weight_averages(self) -> None:
        def run(device: torch.device) -> Any:
            model = torch.nn.Linear(3, 2, device=device)
            average = torch.optim.swa_utils.AveragedModel(model)
            for step in range(3):
                with torch.no_grad():
                    model.weight.copy_(numbers(2, 3) * step)
                    model.bias.copy_(numbers(2) - step)
                average.update_parameters(model)
            return [one.detach() for one in average.module.parameters()]

        self.assert_same_on_both(run)

    @needs("two devices", "DataParallel")
    def test_data_parallel_gives_the_gradients_of_one_device(self) -> None:
        def run(device, wrap):
            model = torch.nn.Linear(4, 3)
            with torch.no_grad():
                model.weight.copy_(numbers(3, 4))
                model.bias.copy_(numbers(3))
            model.to(device)
            halves = numbers(2, 4, device=device), numbers(2, 4, device=device) * 3
            if wrap:
                outputs = torch.nn.DataParallel(model, device_ids=[0, 1])(torch.cat(halves))
                outputs.sum(dim=0).prod().backward()
            else:
                outputs = torch.cat([model(half) for half in halves])
                outputs.sum(dim=0).prod().backward()
            return [outputs.detach().cpu(), *(one.grad.cpu() for one in model.parameters())]

        self.assertIsNone(difference(run(DEVICE, True), run(CPU, False), CPU, target().tolerance))


class TestMemory(DeviceTestCase):
    def setUp(self):
        super().setUp()
        enabled = torch.are_deterministic_algorithms_enabled()
        self.addCleanup(torch.use_deterministic_algorithms, enabled)
        self.addCleanup(
            setattr,
            deterministic,
            "fill_uninitialized_memory",
            deterministic.fill_uninitialized_memory,
        )

    @parametrize("dtype", [torch.float32, torch.int32, torch.bool, torch.complex64])
    def test_deterministic_mode_fills_new_memory(self, dtype: Any) -> None:
        torch.use_deterministic_algorithms(True)

        def run(device: torch.device) -> Any:
            grown = torch.zeros(2, dtype=dtype, device=device)
            return [
                torch.empty(7, dtype=dtype, device=device),
                torch.empty_strided((3, 2), (1, 4), dtype=dtype, device=device),
                torch.empty_like(grown),
                grown.new_empty(3),
                grown.resize_(9),
            ]

        self.assert_same_on_both(run)

    @parametrize(
        "memory_format",
        [torch.contiguous_format, torch.channels_last, torch.preserve_format],
        name_fn=lambda one: str(one).removeprefix("torch."),
    )
    def test_memory_formats_are_kept_as_on_the_cpu(self, memory_format: Any) -> None:
        def run(device: torch.device) -> Any:
            x = numbers(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
            y = x.clone(memory_format=memory_format)
            return [
                y,
                torch.empty_like(x, memory_format=memory_format).zero_(),
                x.relu(),
                x + y,
                x.mul(2).contiguous(),
                torch.nn.functional.max_pool2d(y, 2),
                torch.nn.functional.interpolate(y, scale_factor=2.0),
                torch.nn.functional.conv2d(x, numbers(4, 3, 2, 2, device=device)),
                x.to(torch.float64, memory_format=memory_format),
                x.transpose(1, 2).exp(),
            ]

        self.assert_same_on_both(run)

    def test_writing_to_expanded_memory_raises(self) -> None:
        x = torch.zeros(1, device=DEVICE).expand(4)
        with self.assertRaisesRegex(RuntimeError, "single memory location"):
            x.add_(1)

    @parametrize(
        "call",
        [
            subtest(lambda x: torch.add(x[:-1], 1, out=x[1:]), name="generated"),
            subtest(scan_onto_itself, name="scan"),
            subtest(lambda x: torch.special.airy_ai(x[:-1], out=x[1:]), name="special"),
            subtest(select_onto_itself, name="index"),
            subtest(lambda x: x[1:].copy_(x[:-1]), name="copy"),
            subtest(lambda x: x[1:].addcmul_(x[:-1], x[:-1]), name="inplace"),
            subtest(lambda x: x[1:].lerp_(x[:-1], 0.5), name="lerp"),
            subtest(lambda x: x[1:].polygamma_(1).mul_(x[:-1]), name="mul"),
        ],
    )
    def test_writing_to_what_is_read_raises_as_on_the_cpu(self, call: Any) -> None:
        succeeds_on = []
        for device in (CPU, DEVICE):
            x = torch.arange(5.0, device=device)
            with contextlib.suppress(RuntimeError):
                call(x)
                torch.accelerator.synchronize()
                succeeds_on.append(device)
        self.assertIn(succeeds_on, ([], [CPU, DEVICE]))

    @parametrize(
        "call",
        [
            subtest(lambda x, out: torch.add(x, 1, out=out), name="generated"),
            subtest(lambda x, out: torch.cumsum(x, 0, out=out), name="scan"),
            subtest(lambda x, out: torch.special.i1(x, out=out), name="special"),
            subtest(lambda x, out: torch.nanmedian(x, 0, out=(out, out.long())), name="fallback"),
            subtest(lambda x, out: torch.matmul(x, x, out=out), name="composite"),
        ],
    )
    def test_out_on_another_device_raises(self, call: Any) -> None:
        x = numbers(4, 4, device=DEVICE)
        outs = [torch.empty(4, 4)]
        if target().device_count() > 1:
            outs.append(torch.empty(4, 4, device=OTHER))
        for out in outs:
            with self.assertRaisesRegex(RuntimeError, "device"):
                call(x, out)


instantiate_parametrized_tests(TestTransforms)
instantiate_parametrized_tests(TestParametrizations)
instantiate_parametrized_tests(TestTrainingUtilities)
instantiate_parametrized_tests(TestMemory)
