"""Autograd gives the CPU's gradients: hooks, checkpoints, threads, several devices."""

import functools
import warnings
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from torch_openreg.conformance.arguments import CPU
from torch_openreg.conformance.cases import (
    call_in_thread,
    call_in_threads,
    instantiate_parametrized_tests,
    needs,
    parametrize,
)
from torch_openreg.conformance.comparison import difference
from torch_openreg.conformance.sweep import DEVICE, DeviceTestCase, seed
from torch_openreg.conformance.target import target

OTHER = target().other()


def network() -> torch.nn.Module:
    """A network with dropout; always the same one."""
    seed()
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.LayerNorm(16),
        torch.nn.GELU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(16, 4),
    )


def batch(device: torch.device) -> torch.Tensor:
    """The same numbers on each device. The generators of all devices are then in the same state."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    seed()
    return x.to(device)


class TestAutograd(DeviceTestCase):
    # --- Hooks

    def test_tensor_hook_sees_and_replaces_the_gradient(self) -> None:
        def run(device: torch.device) -> Any:
            seen = []
            x = batch(device).requires_grad_()
            y = x.sin()
            y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
            y.pow(2).sum().backward()
            return seen, x.grad

        self.assert_same_on_both(run)

    def test_post_accumulate_hook_runs_once_per_backward(self) -> None:
        def run(device: torch.device) -> Any:
            seen = []
            x = batch(device).requires_grad_()
            x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
            x.exp().sum().backward()
            x.exp().sum().backward()
            return seen

        self.assert_same_on_both(run)

    def test_module_hooks_see_inputs_outputs_and_gradients(self) -> None:
        def run(device: torch.device) -> Any:
            seen = []
            model = network().to(device)
            model[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
            model[0].register_forward_hook(lambda _, args, output: seen.append(output.detach()))
            model[4].register_full_backward_hook(lambda _, inputs, outputs: seen.extend(inputs))
            model[4].register_full_backward_pre_hook(lambda _, outputs: seen.extend(outputs))
            model(batch(device)).sum().backward()
            return seen

        self.assert_same_on_both(run)

    def test_saved_tensors_hooks_move_activations_to_the_host_and_back(self) -> None:
        def run(device: torch.device) -> Any:
            x = batch(device).requires_grad_()
            with torch.autograd.graph.save_on_cpu():
                y = (x.exp() * x.tanh()).sum()
            y.backward()
            return x.grad

        self.assert_same_on_both(run)

    def test_saved_tensors_hooks_pack_and_unpack_on_the_device(self) -> None:
        def run(device: torch.device) -> Any:
            packed = []
            x = batch(device).requires_grad_()
            hooks = torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: packed.append(tensor.detach().clone()) or len(packed) - 1,
                lambda index: packed[index] * 0.5,
            )
            with hooks:
                y = x.pow(3).sum()
            y.backward()
            return x.grad, packed

        self.assert_same_on_both(run)

    # --- Checkpoints

    @parametrize("use_reentrant", [True, False])
    def test_checkpoint_gives_the_gradients_of_the_plain_network(self, use_reentrant: Any) -> None:
        for device in (CPU, DEVICE):
            gradients = []
            for run in (
                lambda model, x: model(x),
                lambda model, x: checkpoint(model, x, use_reentrant=use_reentrant),
            ):
                model = network().to(device)
                x = batch(device).requires_grad_()
                seed()
                run(model, x).pow(2).sum().backward()
                gradients.append([x.grad.cpu(), *(one.grad.cpu() for one in model.parameters())])
            self.assertIsNone(difference(gradients[1], gradients[0], CPU, target().tolerance))

    @parametrize("use_reentrant", [True, False])
    def test_checkpoint_repeats_the_random_numbers(self, use_reentrant: Any) -> None:
        def run(device: torch.device) -> Any:
            x = batch(device).requires_grad_()
            masks = []

            def function(x):
                y = torch.nn.functional.dropout(x, 0.5)
                masks.append((y == 0).clone())
                return y * x

            checkpoint(function, x, use_reentrant=use_reentrant).sum().backward()
            self.assertEqual(len(masks), 2)
            self.assertTrue(torch.equal(masks[0].cpu(), masks[1].cpu()))
            return x.grad, masks, torch.rand(3, device=device)

        self.assert_same_on_both(run)

    @parametrize("use_reentrant", [True, False])
    def test_checkpoint_sequential(self, use_reentrant: Any) -> None:
        def run(device: torch.device) -> Any:
            model = network().to(device)
            x = batch(device).requires_grad_()
            seed()
            checkpoint_sequential(model, 2, x, use_reentrant=use_reentrant).sum().backward()
            return x.grad, [one.grad for one in model.parameters()]

        self.assert_same_on_both(run)

    # --- Higher derivatives

    def test_double_backward(self) -> None:
        def run(device: torch.device) -> Any:
            model = network().eval().to(device)
            x = batch(device).requires_grad_()
            (gradient,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
            gradient.pow(2).sum().backward()
            return gradient.detach(), x.grad, [one.grad for one in model.parameters()]

        self.assert_same_on_both(run)

    def test_third_derivative(self) -> None:
        def run(device: torch.device) -> Any:
            x = batch(device).requires_grad_()
            y = x.sin().mul(x.exp()).sum()
            for _ in range(3):
                (gradient,) = torch.autograd.grad(y, x, create_graph=True)
                y = gradient.sum()
            return gradient.detach()

        self.assert_same_on_both(run)

    def test_gradcheck_and_gradgradcheck(self) -> None:
        x = batch(DEVICE)[:2, :3].double().requires_grad_()
        w = batch(DEVICE)[2:5, 3:6].double().requires_grad_()

        def function(x, w):
            return torch.nn.functional.softmax(x @ w, -1).log()

        self.assertTrue(torch.autograd.gradcheck(function, (x, w)))
        self.assertTrue(torch.autograd.gradgradcheck(function, (x, w)))

    def test_forward_mode(self) -> None:
        def run(device: torch.device) -> Any:
            x, tangent = batch(device), batch(device).flip(0)
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(x, tangent)
                return tuple(torch.autograd.forward_ad.unpack_dual(dual.sin() * dual.exp()))

        self.assert_same_on_both(run)

    def test_custom_function(self) -> None:
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.pow(3)

            @staticmethod
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                return 3 * gradient * x.pow(2)

        def run(device: torch.device) -> Any:
            x = batch(device).requires_grad_()
            Cube.apply(x).sum().backward()
            return x.grad

        self.assert_same_on_both(run)

    # --- Errors

    def test_anomaly_mode_names_the_function_that_made_a_nan(self) -> None:
        x = torch.zeros(3, device=DEVICE, requires_grad=True)
        with (
            warnings.catch_warnings(),
            self.assertRaisesRegex(RuntimeError, "'SqrtBackward0' returned nan values"),
        ):
            warnings.simplefilter("ignore")
            with torch.autograd.detect_anomaly():
                (x.sqrt() * 0).sum().backward()

    def test_saved_tensor_changed_in_place_raises(self) -> None:
        x = batch(DEVICE).requires_grad_()
        y = x.exp()
        z = y.pow(2)
        y.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            z.sum().backward()

    def test_leaf_changed_in_place_raises(self) -> None:
        x = batch(DEVICE).requires_grad_()
        with self.assertRaisesRegex(RuntimeError, "a leaf Variable that requires grad"):
            x.add_(1)

    def test_exception_of_a_hook_comes_out_of_backward(self) -> None:
        def fail(gradient):
            raise ValueError("the hook failed")

        x = batch(DEVICE).requires_grad_()
        y = x * 2
        y.register_hook(fail)
        with self.assertRaisesRegex(ValueError, "the hook failed"):
            y.sum().backward()
        x.mul(3).sum().backward()
        self.assert_agrees(x.grad, torch.full((6, 8), 3.0))

    # --- Threads

    def test_backward_in_many_threads(self) -> None:
        def gradient(device, factor):
            x = (batch(device) * factor).requires_grad_()
            for _ in range(5):
                (x.sin() @ x.cos().T).sum().backward()
            return x.grad.cpu()

        expected = [gradient(CPU, factor) for factor in range(4)]
        actual = [None] * 4

        def run(factor):
            actual[factor] = gradient(DEVICE, factor)

        call_in_threads(*(functools.partial(run, factor) for factor in range(4)))
        self.assertIsNone(difference(actual, expected, CPU, target().tolerance))

    def test_backward_in_another_thread_than_forward(self) -> None:
        def run(device: torch.device) -> Any:
            x = batch(device).requires_grad_()
            y = x.exp().sum()
            call_in_thread(y.backward)
            return x.grad

        self.assert_same_on_both(run)

    def test_threads_accumulate_into_one_leaf(self) -> None:
        x = torch.ones(4, device=DEVICE, requires_grad=True)
        call_in_threads(*[lambda: (x * 2).sum().backward()] * 8)
        self.assert_agrees(x.grad, torch.full((4,), 16.0))

    def test_backward_on_a_side_stream_runs_where_forward_ran(self) -> None:
        stream = torch.Stream(DEVICE)
        seen = []
        x = batch(DEVICE).requires_grad_()
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            y = x.exp()
            y.register_hook(lambda _: seen.append(torch.accelerator.current_stream()))
            total = y.sum()
        torch.accelerator.current_stream().wait_stream(stream)
        total.backward()
        self.assertEqual(seen, [stream])
        self.assert_agrees(x.grad, batch(CPU).exp())

    # --- Devices

    @needs("two devices")
    def test_backward_across_devices(self) -> None:
        def run(first, second):
            model = network().eval()
            front, back = model[:2].to(first), model[2:].to(second)
            x = batch(first).requires_grad_()
            back(front(x).to(second)).pow(2).sum().backward()
            self.assertEqual(x.grad.device, first)
            for part, device in ((front, first), (back, second)):
                self.assertEqual({one.grad.device for one in part.parameters()}, {device})
            return [x.grad.cpu(), *(one.grad.cpu() for one in model.parameters())]

        self.assertIsNone(difference(run(DEVICE, OTHER), run(CPU, CPU), CPU, target().tolerance))

    def test_backward_across_the_host(self) -> None:
        def run(device: torch.device) -> Any:
            x = batch(device).requires_grad_()
            y = x.exp().cpu().sin().to(device)
            y.sum().backward()
            return x.grad

        self.assert_same_on_both(run)

    @needs("two devices")
    def test_gradient_on_another_device_raises(self) -> None:
        y = batch(DEVICE).requires_grad_().exp()
        with self.assertRaisesRegex(RuntimeError, f"expected device {DEVICE} but got {OTHER}"):
            y.backward(torch.ones(6, 8, device=OTHER))


instantiate_parametrized_tests(TestAutograd)
