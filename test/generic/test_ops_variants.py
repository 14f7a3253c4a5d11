"""The in-place and out= forms of every operator give the CPU's results."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests
from operators import OPERATORS, arguments_of, call_of, cpu_dtypes, samples_of
from samples import CPU
from sweep import Call, SweepTestCase, outcome

_SAMPLES = 2  # of each dtype but float32

_WITH_INPLACE = [one for one in OPERATORS if one.arg_values.inplace_variant]
_WITH_OUT = [one for one in OPERATORS if one.arg_values.supports_out]


def _fitting(result: torch.Tensor) -> torch.Tensor:
    """What the operator would have allocated, with contents that it has to overwrite."""
    return torch.full_like(result, 1) if result.layout is torch.strided else result.clone()


def _empty(result: torch.Tensor) -> torch.Tensor:
    """Has to grow."""
    return result.new_empty(0)


def _strided(result: torch.Tensor) -> torch.Tensor:
    """Fits, and has gaps between its elements and its dimensions in reverse."""
    sizes = [*reversed(result.shape), 2]
    return result.new_ones(sizes).select(-1, 0).permute(tuple(reversed(range(result.dim()))))


# The CPU's kernels write outside the memory of such a tensor, in torch itself.
_NEEDS_DENSE_OUT = {"linalg_lu", "lu_unpack", "tril", "triu"}


def _outs_of(info: Any, result: Any) -> Iterator[Any]:
    """Arguments for out=, one per way to make them; none if not all of the result is tensors."""
    ways = [_fitting, _empty]
    if info.formatted_name not in _NEEDS_DENSE_OUT:
        ways.append(_strided)
    if isinstance(result, torch.Tensor) and result.layout is not torch.strided:
        ways = [_fitting]  # sparse tensors have other shapes than these
    for way in ways:
        if isinstance(result, torch.Tensor):
            yield way(result)
        elif isinstance(result, tuple | list) and _are_tensors(result):
            outs = [way(one) for one in result]
            yield outs if isinstance(result, list) else tuple(outs)


def _are_tensors(values: Sequence[Any]) -> bool:
    return all(isinstance(one, torch.Tensor) for one in values)


class TestVariants(SweepTestCase):
    @parametrize("info", _WITH_INPLACE)
    def test_inplace(self, info):
        function = call_of(info, info.inplace_variant)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in samples_of(info, dtype, limit):
                if isinstance(sample.input, torch.Tensor):
                    yield Call(function, arguments_of(info, sample))

        self.sweep(info.formatted_name, "inplace", cpu_dtypes(info), calls)

    @parametrize("info", _WITH_OUT)
    def test_out(self, info):
        function = call_of(info, info.op)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in samples_of(info, dtype, limit):
                arguments = arguments_of(info, sample)
                for out in _outs_of(info, outcome(function, arguments, CPU).result):
                    yield Call(function, arguments.with_keywords(out=out))

        self.sweep(info.formatted_name, "out", cpu_dtypes(info), calls)


instantiate_parametrized_tests(TestVariants)

if __name__ == "__main__":
    run_tests()
