"""The operators on lists of tensors give the CPU's results and gradients, in every layout."""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as database

from torch_openreg.conformance.arguments import Arguments
from torch_openreg.conformance.cases import (
    ConformanceTestCase,
    instantiate_parametrized_tests,
    parametrize,
    subtest,
)
from torch_openreg.conformance.layouts import LAYOUTS, with_layout
from torch_openreg.conformance.mutations import with_other_contents, with_other_numbers
from torch_openreg.conformance.operators import arguments_of, gradients_of
from torch_openreg.conformance.sweep import (
    DEVICE,
    IS_FULL,
    Call,
    CallSequence,
    Counts,
    SweepTestCase,
    crossed,
    seed,
)
from torch_openreg.conformance.target import target

_INFOS = [
    *database.foreach_unary_op_db,
    *database.foreach_binary_op_db,
    *database.foreach_pointwise_op_db,
    *database.foreach_reduce_op_db,
    *database.foreach_other_op_db,
]
_OPERATORS = [subtest(info, name=info.name) for info in _INFOS]
_WITH_INPLACE = [one for one in _OPERATORS if one.arg_values.inplace_variant]
_WITH_FUNCTION = [one for one in _OPERATORS if one.arg_values.supports_out]
_DIFFERENTIABLE = [one for one in _WITH_FUNCTION if one.arg_values.supports_autograd]

_SAMPLES = 2  # of each dtype but float32
_LAYOUTS = Counts(usual=3, thorough=len(LAYOUTS) + 1, others=1)  # of each sample
_MUTATIONS = Counts(usual=6, thorough=30, others=1)  # of each sample

_DTYPES = (torch.float32, torch.uint8, torch.int64, torch.complex64)  # of other calls

# The database leaves lists with empty tensors out for a device that is named "cpu".
_CPU = "cpu:0"


def _samples_of(
    info: Any, dtype: torch.dtype, limit: int | None, requires_grad: bool = False
) -> Iterator[Any]:
    seed()
    # The generator takes its keyword arguments away.
    sizes = {} if IS_FULL else {"num_input_tensors": [7]}
    samples = itertools.chain(
        info.sample_inputs_func(info, _CPU, dtype, requires_grad, **sizes),
        info.sample_zero_size_inputs(_CPU, dtype, requires_grad) if IS_FULL else (),
    )
    return itertools.islice(samples, None if IS_FULL else limit)


def _relaid(arguments: Arguments) -> list[Arguments]:
    """The arguments in each other layout that they can have."""
    others = [with_layout(arguments, layout) for layout in (*LAYOUTS, "mixed")]
    return [one for one in others if one is not None]


def _mutated(arguments: Arguments) -> Iterator[Arguments]:
    """The arguments with one number, or the contents of one tensor, changed."""
    for _, other in (*with_other_numbers(arguments), *with_other_contents(arguments)):
        yield other


_DEVICES = ["cpu", *(f"{DEVICE.type}:{index}" for index in range(target().device_count()))]


def _spread(value: Any) -> Any:
    """A copy of an argument, the tensors of a list on one device after the other."""
    if isinstance(value, list):
        devices = itertools.cycle(_DEVICES)
        return [
            one.detach().to(device, copy=True) if isinstance(one, torch.Tensor) else one
            for one, device in zip(value, devices, strict=False)
        ]
    return value.clone() if isinstance(value, torch.Tensor) else value


class TestSeveralDevices(ConformanceTestCase):
    """Tensor by tensor, each where its first tensor is: as on CUDA."""

    def check(self, info: Any, function: Callable[..., Any], is_in_place: bool) -> None:
        for sample in _samples_of(info, torch.float32, 4):
            arguments = arguments_of(info, sample)
            for _ in range(2):
                actual, expected = (
                    self.result_of(function, arguments, place, is_in_place)
                    for place in (_spread, copy.deepcopy)
                )
                if isinstance(expected, Exception):
                    self.assertEqual(type(actual), type(expected))
                    continue
                self.assertEqual(len(actual), len(expected))
                for one, other, device in zip(
                    actual, expected, itertools.cycle(_DEVICES), strict=False
                ):
                    self.assertEqual(one.device, torch.device(device))
                    self.assertEqual(one.dtype, other.dtype)
                    self.assertEqual(one.stride(), other.stride())
                    self.assert_agrees(one, other)

    def result_of(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        place: Callable[[Any], Any],
        is_in_place: bool,
    ) -> list[torch.Tensor] | RuntimeError:
        args = [place(arg) for arg in arguments.args]
        kwargs = {name: place(arg) for name, arg in arguments.kwargs.items()}
        try:
            result = function(*args, **kwargs)
        except RuntimeError as error:
            return error
        return list(args[0] if is_in_place else result)

    @parametrize("info", _WITH_FUNCTION)
    def test_forward(self, info: Any) -> None:
        self.check(info, info.op, is_in_place=False)

    @parametrize("info", _WITH_INPLACE)
    def test_inplace(self, info: Any) -> None:
        self.check(info, info.inplace_variant, is_in_place=True)


class TestForeach(SweepTestCase):
    def check_foreach(self, info: Any, variant: str, function: Callable[..., Any]) -> None:
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in _samples_of(info, dtype, limit):
                yield Call(function, arguments_of(info, sample))

        self.sweep(info.name, variant, info.supported_dtypes("cpu"), calls)

    @parametrize("info", _WITH_FUNCTION)
    def test_forward(self, info: Any) -> None:
        self.check_foreach(info, "forward", info.op)

    @parametrize("info", _WITH_INPLACE)
    def test_inplace(self, info: Any) -> None:
        self.check_foreach(info, "inplace", info.inplace_variant)

    def check_others(self, info: Any, variant: str, function: Callable[..., Any]) -> None:
        """Calls that alternate between layouts, numbers and contents."""

        def calls(dtype: torch.dtype) -> Iterator[CallSequence]:
            name = f"{info.name} {variant} {dtype}"
            samples = [arguments_of(info, one) for one in _samples_of(info, dtype, None)]
            for plain, other in crossed(name, samples, _SAMPLES, _relaid, _LAYOUTS):
                changed = other.with_other_numbers()
                yield CallSequence(function, (plain, other, changed, plain, other))
            for plain, other in crossed(name, samples, _SAMPLES, _mutated, _MUTATIONS):
                yield CallSequence(function, (plain, plain, other, plain, other))

        dtypes = [one for one in _DTYPES if one in info.supported_dtypes("cpu")]
        self.sweep(info.name, variant, dtypes, calls)

    @parametrize("info", _WITH_FUNCTION)
    def test_others(self, info: Any) -> None:
        self.check_others(info, "lists, others", info.op)

    @parametrize("info", _WITH_INPLACE)
    def test_others_inplace(self, info: Any) -> None:
        self.check_others(info, "lists inplace, others", info.inplace_variant)

    @parametrize("info", _DIFFERENTIABLE)
    def test_backward(self, info: Any) -> None:
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in _samples_of(info, dtype, limit, requires_grad=True):
                yield Call(gradients_of(info.op), arguments_of(info, sample))

        self.sweep(info.name, "backward", (torch.float32, torch.complex64), calls)


instantiate_parametrized_tests(TestForeach)
instantiate_parametrized_tests(TestSeveralDevices)
