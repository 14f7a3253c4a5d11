"""Custom operators inside compiled functions: in Python and C++, with their own gradients."""

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
from extras.inductor.compiled import IS_FULL, CompiledTestCase, requires_full
from extras.inductor.functions import leaf, normal
from torch._dynamo.utils import counters

pytestmark = pytest.mark.sample(0.06)

NAMESPACE = "openreg_inductor_test"


@torch.library.custom_op(f"{NAMESPACE}::smooth_sign", mutates_args=())
def smooth_sign(x: torch.Tensor, width: float) -> torch.Tensor:
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


@torch.library.custom_op(f"{NAMESPACE}::halves", mutates_args=())
def halves(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x / 2 for x in tensors]


@halves.register_fake
def _(tensors):
    return [torch.empty_like(x) for x in tensors]


@torch.library.custom_op(f"{NAMESPACE}::add_row_", mutates_args=("x",))
def add_row_(x: torch.Tensor, row: torch.Tensor) -> None:
    x.add_(row)


@torch.library.custom_op(f"{NAMESPACE}::nonzero_values", mutates_args=())
def nonzero_values(x: torch.Tensor) -> torch.Tensor:
    return x[x != 0]


@nonzero_values.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op(f"{NAMESPACE}::of_the_cpu", mutates_args=(), device_types="cpu")
def of_the_cpu(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@of_the_cpu.register_fake
def _(x):
    return torch.empty_like(x)


def write_argument(x, row):
    add_row_(x, row * 2)
    return x + 1


def write_what_is_computed(x, row):
    y = x + 1
    add_row_(y, row)
    return y * 2, y.sum()


def apply_each(a, b):
    c, d = halves([a * 2, b + 1])
    return c + d.sum()


def bent(x):
    return torch.ops.openreg.custom_abs(smooth_sign(x * 2, 1.0) - 1)


SAMPLE = {
    "python": (lambda x: smooth_sign(x * 2, 1.0) + x, lambda: [leaf(5, 3)]),
    "cpp": (lambda x: torch.ops.openreg.custom_abs(x * 2) + 1, lambda: [leaf(5, 3)]),
}
CASES = {
    **SAMPLE,
    "cpp_returns_self": (
        lambda x: torch.ops.openreg.custom_autograd_fn_returns_self(x + 1) * 2,
        lambda: [leaf(5)],
    ),
    "cpp_alias": (
        lambda x: torch.ops.openreg.custom_autograd_fn_aliasing(x + 1) * 2,
        lambda: [leaf(5)],
    ),
    "lists": (apply_each, lambda: [normal(5), normal(3)]),
    "writes_argument": (write_argument, lambda: [normal(4, 3), normal(3)]),
    "writes_computed": (write_what_is_computed, lambda: [normal(4, 3), normal(3)]),
    "of_the_cpu": (lambda x: of_the_cpu(x + 1) * 2, lambda: [normal(5)]),
}


class TestCustomOps(CompiledTestCase):
    @pytest.mark.slow("python")
    @parametrize(
        "function, make_arguments",
        [subtest(case, name=name) for name, case in (CASES if IS_FULL else SAMPLE).items()],
    )
    def test_results_and_gradients_are_those_of_the_cpu(self, function, make_arguments):
        self.compare_with_cpu(function, make_arguments(), fullgraph=True)

    @requires_full
    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_size_of_the_result_depends_on_data(self):
        x = torch.tensor([1.0, 0.0, 2.0, 0.0])
        self.compare_with_cpu(lambda x: nonzero_values(x * 2) + 1, [x], fullgraph=True)

    @requires_full
    @requires_two_devices
    def test_operators_on_two_devices_in_one_graph(self):
        def function(x, y):
            a = smooth_sign(x + 1, 1.0)
            return a + torch.ops.openreg.custom_abs(y * 2).to(x.device)

        x, y = normal(5), normal(5)
        compiled = torch.compile(function, fullgraph=True)
        expected = function(x, y)
        for one, other in ((0, 1), (1, 0)):
            result = compiled(x.to(f"{DEVICE_TYPE}:{one}"), y.to(f"{DEVICE_TYPE}:{other}"))
            self.assertEqual(result.device.index, one)
            self.assertEqual(result.cpu(), expected)

    def test_call_returns_before_operators_and_kernels_have_run(self):
        x = torch.linspace(-3, 3, 16)
        on_device = x.to(DEVICE_TYPE).requires_grad_()
        gradient = torch.ones(16, device=DEVICE_TYPE)
        compiled = torch.compile(bent, fullgraph=True)
        compiled(on_device).backward(gradient)
        on_device.grad = None
        torch.openreg.synchronize()
        with StreamGate() as gate:
            result = compiled(on_device)
            result.backward(gradient)
            self.assertFalse(torch.openreg.current_stream().query())
            gate.open()
        on_host = x.requires_grad_()
        expected = bent(on_host)
        expected.sum().backward()
        self.assertEqual(result.cpu(), expected)
        self.assertEqual(on_device.grad.cpu(), on_host.grad)

    def test_replays(self):
        counters.clear()
        compiled = torch.compile(bent, mode="reduce-overhead")
        for i in range(4):
            on_host = (torch.linspace(-3, 3, 16) * (i + 1)).requires_grad_()
            on_device = on_host.detach().to(DEVICE_TYPE).requires_grad_()
            result, expected = compiled(on_device), bent(on_host)
            result.sum().backward()
            expected.sum().backward()
            self.assertEqual(result.cpu(), expected)
            # The backward graph writes it over a tensor that was saved.
            self.assertEqual(on_device.grad.cpu(), on_host.grad)
        self.assertEqual(dict(counters["openreg_graphs"]), {"captured": 2})


class Bend(torch.autograd.Function):
    """A gradient in Python, which compiled autograd takes into its graph."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * 0.5


class TestCompiledAutograd(CompiledTestCase):
    """One graph for the whole of a backward, that of eager operators included."""

    def gradients(self, device, loss_of, mode="default"):
        torch._dynamo.reset()
        torch.manual_seed(2)
        x = torch.randn(5, 4).to(device).requires_grad_()
        weight = torch.randn(4, 4).to(device).requires_grad_()
        gradients = []

        def compile_backward(graph):
            return torch.compile(graph, backend="inductor", mode=mode)

        for _ in range(3):
            x.grad = weight.grad = None
            with torch._dynamo.compiled_autograd._enable(compile_backward):
                loss_of(x, weight).backward()
            gradients += [x.grad.cpu(), weight.grad.cpu()]
        return gradients

    def check(self, loss_of, **options):
        counters.clear()
        actual = self.gradients(DEVICE_TYPE, loss_of, **options)
        self.assertEqual(counters["compiled_autograd"]["captures"], 1)
        for one, other in zip(actual, self.gradients("cpu", loss_of), strict=True):
            self.assert_bit_equal(one, other)

    @requires_full
    def test_eager_forward(self):
        self.check(lambda x, weight: torch.nn.functional.gelu(x @ weight).square().sum())

    @requires_full
    def test_compiled_forward(self):
        def loss_of(x, weight):
            return torch.nn.functional.layer_norm(x @ weight, (4,)).tanh().sum()

        self.check(lambda x, weight: torch.compile(loss_of)(x, weight))

    def test_custom_operators(self):
        def loss_of(x, weight):
            y = smooth_sign(x @ weight, 1.0)
            z = torch.ops.openreg.custom_autograd_fn_aliasing(Bend.apply(y))
            return torch.ops.openreg.custom_abs(z).sum()

        self.check(loss_of)

    @requires_full
    def test_hooks(self):
        def loss_of(x, weight):
            y = x @ weight
            y.register_hook(lambda gradient: gradient * 2 + 1)
            return y.square().sum()

        self.check(loss_of)

    def test_replays(self):
        self.check(
            lambda x, weight: torch.compile(lambda x, w: (x @ w).tanh().sum())(x, weight),
            mode="reduce-overhead",
        )
        self.assertEqual(counters["openreg_graphs"]["captured"], 1)


instantiate_parametrized_tests(TestCustomOps)

if __name__ == "__main__":
    run_tests()
