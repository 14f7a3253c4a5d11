"""Every operator under function transforms gives the CPU's results.

Transforms show an operator other tensors than programs do: batched ones, tensors of zeros without
memory, tangents, and gradients that are differentiated again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_openreg.conformance.arguments import tensors_in
from torch_openreg.conformance.cases import (
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
)
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    samples_of,
)
from torch_openreg.conformance.sweep import Call, SweepTestCase, sampled

_FIRST = 12  # samples to choose from
_SAMPLES = 3

_Function = Callable[..., Any]


def _supporting(dtypes_of: Callable[[Any], Any]) -> list[Any]:
    return [one for one in OPERATORS if torch.float32 in dtypes_of(one.arg_values)]


_WITH_FLOATS = _supporting(dtypes_under_test)
_DIFFERENTIABLE = _supporting(lambda info: info.supported_backward_dtypes("cpu"))
_FORWARD_MODE = [one for one in _DIFFERENTIABLE if one.arg_values.supports_forward_ad]
_TWICE = [one for one in _DIFFERENTIABLE if one.arg_values.supports_gradgrad]


def _split(
    function: _Function, args: Any, kwargs: Any, is_chosen: Callable[[torch.Tensor], bool]
) -> tuple[_Function, list[torch.Tensor]]:
    """Makes a function of some of the tensors among the arguments, and returns it with them."""
    leaves, form = pytree.tree_flatten((args, kwargs))
    places = [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and is_chosen(leaf)
    ]

    def call(*tensors: torch.Tensor) -> Any:
        values = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        new_args, new_kwargs = pytree.tree_unflatten(values, form)
        return function(*new_args, **new_kwargs)

    return call, [leaves[place] for place in places]


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _is_on_device(tensor: torch.Tensor) -> bool:
    return True


def _differentiable(choose: _Function, function: _Function) -> _Function:
    """The tensors in the part of the result that can be differentiated."""

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = tensors_in(choose(function(*tensors)))
        return tuple(one for one in results if _is_floating(one))

    return call


def _batch(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Two of each: the tensor, and one with its elements in reverse."""
    return [
        torch.stack([one.detach(), one.detach().flatten().flip(0).view(one.shape)])
        for one in tensors
    ]


def _jvp(function: _Function, choose: _Function) -> _Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        function_of, primals = _split(function, args, kwargs, _is_floating)
        tangents = tuple(one.cos() for one in primals)
        return torch.func.jvp(_differentiable(choose, function_of), tuple(primals), tangents)

    return call


def _vmap(function: _Function, choose: _Function) -> _Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        function_of, tensors = _split(function, args, kwargs, _is_on_device)
        return torch.func.vmap(function_of, randomness="different")(*_batch(tensors))

    return call


def _vmap_of_vjp(function: _Function, choose: _Function) -> _Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        function_of, tensors = _split(function, args, kwargs, _is_floating)

        def gradients(*primals: torch.Tensor) -> Any:
            outputs, pull = torch.func.vjp(_differentiable(choose, function_of), *primals)
            return pull(tuple(one.cos() for one in outputs))

        return torch.func.vmap(gradients, randomness="different")(*_batch(tensors))

    return call


def _scalar_product(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> torch.Tensor:
    products = [(one * other).sum() for one, other in zip(ones, others, strict=True)]
    return sum(product.real if product.is_complex() else product for product in products)


_NUMBER_OF_LEAVES = 2**63


class _Order:
    """The order of the nodes of a graph whose first gradients are differentiated again.

    The engine prefers nodes with higher numbers, which each thread counts by itself. The backward
    pass of a device has a separate thread, as on CUDA, so the order in which second gradients are
    added depends on the threads' counters. Here all of the caller's nodes have higher numbers than
    those of the backward pass, on the CPU and on the device.
    """

    _MARGIN = 10_000  # more than a backward pass has nodes

    def __init__(self) -> None:
        self._highest = 0  # of the backward passes so far

    def prepare(self) -> None:
        """Has to come before the caller makes nodes."""
        number = torch.ones(1, requires_grad=True)
        while torch.autograd._get_sequence_nr() < self._highest + self._MARGIN:
            number.view_as(number)

    def gradients(
        self, loss: torch.Tensor, inputs: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor | None]:
        """First gradients, from a thread that is not the caller's on any device."""

        def run() -> Sequence[torch.Tensor | None]:
            return torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)

        gradients = call_in_thread(run) if loss.is_cpu else run()
        nodes = [one.grad_fn for one in gradients if one is not None and one.grad_fn is not None]
        numbers = [one._sequence_nr() for one in nodes]
        # The node of a leaf, which is not part of the backward pass, has the highest number.
        self._highest = max([self._highest, *(one for one in numbers if one < _NUMBER_OF_LEAVES)])
        return gradients


_ORDER = _Order()


def _second_gradients(function: _Function, choose: _Function) -> _Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        function_of, tensors = _split(function, args, kwargs, _is_floating)
        inputs = [one.detach().clone().requires_grad_() for one in tensors]
        _ORDER.prepare()
        outputs = [
            one for one in _differentiable(choose, function_of)(*inputs) if one.requires_grad
        ]
        directions = [one.detach().cos().requires_grad_() for one in outputs]
        if not outputs:
            return ()
        loss = _scalar_product(outputs, directions)
        first = _ORDER.gradients(loss, inputs)
        first = [one for one in first if one is not None and one.requires_grad]
        if not first:
            return ()
        loss = _scalar_product(first, [one.detach().cos() for one in first])
        second = torch.autograd.grad(loss, [*inputs, *directions], allow_unused=True)
        return [one.detach() for one in first], second

    return call


class TestTransforms(SweepTestCase):
    def check_transform(
        self, info: Any, variant: str, transform: Callable[[_Function, _Function], _Function]
    ) -> None:
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            samples = list(samples_of(info, dtype, _FIRST))
            for sample in sampled(f"{info.formatted_name} {variant}", samples, _SAMPLES):
                function = transform(info.op, sample.output_process_fn_grad)
                yield Call(call_of(info, function), arguments_of(info, sample))

        self.sweep(info.formatted_name, variant, [torch.float32], calls)

    @parametrize("info", _FORWARD_MODE)
    def test_jvp(self, info: Any) -> None:
        self.check_transform(info, "jvp", _jvp)

    @parametrize("info", _WITH_FLOATS)
    def test_vmap(self, info: Any) -> None:
        self.check_transform(info, "vmap", _vmap)

    @parametrize("info", _DIFFERENTIABLE)
    def test_vmap_of_vjp(self, info: Any) -> None:
        self.check_transform(info, "vmap of vjp", _vmap_of_vjp)

    @parametrize("info", _TWICE)
    def test_second_gradients(self, info: Any) -> None:
        self.check_transform(info, "second gradients", _second_gradients)


instantiate_parametrized_tests(TestTransforms)
