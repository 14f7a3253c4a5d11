"""The operators on lists of tensors give the CPU's results and gradients, in every layout."""

from poison import PoisonedTestCase

# isort: split
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from layouts import LAYOUTS, with_layout
from mutations import with_other_contents, with_other_numbers
from operators import arguments_of, gradients_of
from sweep import IS_FULL, Call, CallSequence, sampled, seed
from torch.testing._internal import common_methods_invocations as database

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
_LAYOUTS = 3  # of each sample
_MUTATIONS = 6  # of each sample

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


_DEVICES = ["cpu", *(f"{DEVICE_TYPE}:{index}" for index in range(DEVICE_COUNT))]


def _spread(value: Any) -> Any:
    """A copy of an argument, the tensors of a list on one device after the other."""
    if isinstance(value, list):
        devices = itertools.cycle(_DEVICES)
        return [
            one.detach().to(device, copy=True) if isinstance(one, torch.Tensor) else one
            for one, device in zip(value, devices, strict=False)
        ]
    return value.clone() if isinstance(value, torch.Tensor) else value


class TestSeveralDevices(OpenRegTestCase):
    """Tensor by tensor, each where its first tensor is: as on CUDA."""

    def check(self, info: Any, function: Callable[..., Any], is_in_place: bool) -> None:
        for sample in _samples_of(info, torch.float32, 4):
            arguments = arguments_of(info, sample)
            for _ in range(2):
                results = []
                for place in (_spread, lambda value: copy.deepcopy(value)):
                    args = [place(arg) for arg in arguments.args]
                    kwargs = {name: place(arg) for name, arg in arguments.kwargs.items()}
                    result = function(*args, **kwargs)
                    results.append(args[0] if is_in_place else result)
                actual, expected = (list(one) for one in results)
                self.assertEqual(len(actual), len(expected))
                for one, other, device in zip(
                    actual, expected, itertools.cycle(_DEVICES), strict=False
                ):
                    self.assertEqual(one.device, torch.device(device))
                    self.assertEqual(one.dtype, other.dtype)
                    self.assertEqual(one.stride(), other.stride())
                    self.assert_bit_equal(one, other)

    @parametrize("info", _WITH_FUNCTION)
    def test_forward(self, info):
        self.check(info, info.op, is_in_place=False)

    @parametrize("info", _WITH_INPLACE)
    def test_inplace(self, info):
        self.check(info, info.inplace_variant, is_in_place=True)


class TestForeach(PoisonedTestCase):
    def check_foreach(self, info: Any, variant: str, function: Callable[..., Any]) -> None:
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in _samples_of(info, dtype, limit):
                yield Call(function, arguments_of(info, sample))

        self.sweep(info.name, variant, info.supported_dtypes("cpu"), calls)

    @parametrize("info", _WITH_FUNCTION)
    def test_forward(self, info):
        self.check_foreach(info, "forward", info.op)

    @parametrize("info", _WITH_INPLACE)
    def test_inplace(self, info):
        self.check_foreach(info, "inplace", info.inplace_variant)

    def check_others(self, info: Any, variant: str, function: Callable[..., Any]) -> None:
        """Calls that alternate between layouts, numbers and contents."""

        def calls(dtype: torch.dtype) -> Iterator[CallSequence]:
            name = f"{info.name} {variant} {dtype}"
            samples = sampled(name, _samples_of(info, dtype, None), _SAMPLES)
            for index, sample in enumerate(samples):
                plain = arguments_of(info, sample)
                layouts = [with_layout(plain, layout) for layout in (*LAYOUTS, "mixed")]
                possible = [one for one in layouts if one is not None]
                for other in sampled(f"{name} {index} layouts", possible, _LAYOUTS):
                    changed = other.with_other_numbers()
                    yield CallSequence(function, (plain, other, changed, plain, other))
                mutations = [*with_other_numbers(plain), *with_other_contents(plain)]
                for _, other in sampled(f"{name} {index} others", mutations, _MUTATIONS):
                    yield CallSequence(function, (plain, plain, other, plain, other))

        dtypes = [one for one in _DTYPES if one in info.supported_dtypes("cpu")]
        self.sweep(info.name, variant, dtypes, calls)

    @parametrize("info", _WITH_FUNCTION)
    def test_others(self, info):
        self.check_others(info, "lists, others", info.op)

    @parametrize("info", _WITH_INPLACE)
    def test_others_inplace(self, info):
        self.check_others(info, "lists inplace, others", info.inplace_variant)

    @parametrize("info", _DIFFERENTIABLE)
    def test_backward(self, info):
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in _samples_of(info, dtype, limit, requires_grad=True):
                yield Call(gradients_of(info.op), arguments_of(info, sample))

        self.sweep(info.name, "backward", (torch.float32, torch.complex64), calls)


instantiate_parametrized_tests(TestForeach)
instantiate_parametrized_tests(TestSeveralDevices)

if __name__ == "__main__":
    run_tests()
