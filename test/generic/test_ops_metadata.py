"""Fake tensors describe every operator's real results: compilers rely on it.

Compared are sizes, strides, dtype, layout and device, of results and of gradients. Errors of
torch's functions for fake tensors that also occur on the CPU are not counted. Nor is the lack of a
value: since torch 2.14, fake CPU tensors without dimensions know theirs, and those of other devices
do not.
"""

import pytest
from openreg_target import TARGET

# isort: split
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._pytree import tree_map_only

from torch_openreg.conformance.arguments import CPU, Arguments, tensors_in
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    samples_of,
)
from torch_openreg.conformance.sweep import DEVICE, CallSequence, SweepTestCase, outcome

pytestmark = pytest.mark.sample(0.037)

__all__ = ["TARGET"]

_SAMPLES = 2  # of each dtype but float32
_SAMPLES_OF_FLOAT = 8
_DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)

_DIFFERENTIABLE = [
    one for one in OPERATORS if torch.float32 in one.arg_values.supported_backward_dtypes("cpu")
]


def results_and_gradients(function: Callable[..., Any], choose: Callable[[Any], Any]) -> Any:
    """Makes a call that returns a function's differentiable results and the gradients of these."""

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = [one for one in tensors_in((args, kwargs)) if one.requires_grad]
        outputs = [
            one for one in tensors_in(choose(function(*args, **kwargs))) if one.requires_grad
        ]
        if not outputs or not inputs:
            return outputs, ()
        directions = [torch.ones_like(one) for one in outputs]
        return outputs, torch.autograd.grad(outputs, inputs, directions, allow_unused=True)

    return call


def metadata(result: Any) -> list[tuple[Any, ...]]:
    """The compared properties of a result's tensors."""
    return [
        (
            tuple(one.shape),
            one.stride() if one.layout == torch.strided else None,
            one.dtype,
            one.layout,
            one.device,
        )
        for one in tensors_in(result)
    ]


class FakeCall(CallSequence):
    """A call with real and with fake tensors."""

    def __init__(self, function: Callable[..., Any], arguments: Arguments) -> None:
        super().__init__(function, (arguments,))

    def difference(self) -> tuple[str | None, frozenset[str]]:
        text = self._difference_on(DEVICE)
        if text is not None and self._difference_on(CPU) is not None:
            text = None
        return text, frozenset()

    def _difference_on(self, device: torch.device) -> str | None:
        real = outcome(self.function, self.steps[0], device).result
        if isinstance(real, Exception):
            return None
        expected = metadata(real)
        copies = self.steps[0].copied_to(device)
        mode = FakeTensorMode()
        args, kwargs = tree_map_only(torch.Tensor, mode.from_tensor, (copies.args, copies.kwargs))
        is_on_device = bool(copies.tensors()) or kwargs.get("device") is not None
        try:
            with mode, contextlib.nullcontext() if is_on_device else device:
                actual = metadata(self.function(*args, **kwargs))
        except Exception as error:
            is_value_of_scalar = isinstance(error, DataDependentOutputException) and any(
                one.dim() == 0 for one in copies.tensors()
            )
            if is_value_of_scalar:
                return None
            return f"{self.steps[0]}: {type(error).__name__}: {str(error)[:300]}"
        if actual == expected:
            return None
        return f"{self.steps[0]}: fake {actual}, real {expected}"


class TestMetadata(SweepTestCase):
    @parametrize("info", OPERATORS)
    def test_results(self, info: Any) -> None:
        function = call_of(info, info.op)

        def calls(dtype: torch.dtype) -> Iterator[FakeCall]:
            limit = _SAMPLES_OF_FLOAT if dtype == torch.float32 else _SAMPLES
            for sample in samples_of(info, dtype, limit):
                yield FakeCall(function, arguments_of(info, sample))

        dtypes = [one for one in dtypes_under_test(info) if one in _DTYPES]
        self.sweep(info.formatted_name, "metadata", dtypes or dtypes_under_test(info)[:1], calls)

    @parametrize("info", _DIFFERENTIABLE)
    def test_gradients(self, info: Any) -> None:
        def calls(dtype: torch.dtype) -> Iterator[FakeCall]:
            for sample in samples_of(info, dtype, _SAMPLES_OF_FLOAT, requires_grad=True):
                function = results_and_gradients(info.op, sample.output_process_fn_grad)
                yield FakeCall(call_of(info, function), arguments_of(info, sample))

        self.sweep(info.formatted_name, "metadata backward", [torch.float32], calls)


instantiate_parametrized_tests(TestMetadata)

if __name__ == "__main__":
    run_tests()
