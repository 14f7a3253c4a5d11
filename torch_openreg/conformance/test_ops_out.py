"""Every operator writes the CPU's results into every kind of out=, or raises the CPU's error.

Uninitialized memory reads as NaN, which exposes elements that a kernel does not write.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_openreg.conformance.arguments import CPU, Arguments
from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize
from torch_openreg.conformance.layouts import LAYOUTS
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    samples_of,
)
from torch_openreg.conformance.sweep import (
    Call,
    CallSequence,
    Counts,
    SweepTestCase,
    crossed,
    outcome,
    sampled,
)

_FIRST = 12  # samples of float32 to choose from
_SAMPLES = 4  # of float32
_SAMPLES_OF_OTHERS = 2  # of each dtype but float32
_WAYS = Counts(usual=3, thorough=9, others=1)  # of each sample

_WITH_OUT = [one for one in OPERATORS if one.arg_values.supports_out]

# Makes an argument for out= of the result it is for; None if that cannot be.
_Way = Callable[[torch.Tensor], torch.Tensor | None]
# Arguments, their result, and an argument for out= that fits it.
_Case = tuple[Arguments, Any, Any]


def _fitting(result: torch.Tensor) -> torch.Tensor:
    """A tensor like the operator's own result, with contents that it has to overwrite."""
    return torch.full_like(result, 1) if result.layout is torch.strided else result.clone()


def _empty(result: torch.Tensor) -> torch.Tensor:
    """Has to grow."""
    return result.new_empty(0)


def _too_small(result: torch.Tensor) -> torch.Tensor:
    """Has to grow, though it has elements; torch warns."""
    return result.new_ones(1, 1)


def _too_large(result: torch.Tensor) -> torch.Tensor:
    """Has to shrink."""
    return result.new_ones(2, *result.shape)


def _strided(result: torch.Tensor) -> torch.Tensor:
    """Fits, and has gaps between its elements and its dimensions in reverse."""
    sizes = [*reversed(result.shape), 2]
    return result.new_ones(sizes).select(-1, 0).permute(tuple(reversed(range(result.dim()))))


def _transposed(result: torch.Tensor) -> torch.Tensor | None:
    return LAYOUTS["transposed"](torch.full_like(result, 1))


def _channels_last(result: torch.Tensor) -> torch.Tensor | None:
    return LAYOUTS["channels_last"](torch.full_like(result, 1))


def _offset(result: torch.Tensor) -> torch.Tensor | None:
    return LAYOUTS["offset"](torch.full_like(result, 1))


def _double(result: torch.Tensor) -> torch.Tensor:
    """Has a dtype that most results can be cast to."""
    return result.new_ones(result.shape, dtype=torch.float64)


def _byte(result: torch.Tensor) -> torch.Tensor:
    """Has a dtype that few results can be cast to."""
    return result.new_ones(result.shape, dtype=torch.uint8)


def _expanded(result: torch.Tensor) -> torch.Tensor | None:
    """All its elements share one address; memory after it is for kernels that do not check."""
    if result.numel() < 2:
        return None
    return result.new_ones(result.numel()).as_strided(result.shape, (0,) * result.dim())


_WAYS_TO_WRITE: list[_Way] = [
    _empty,
    _too_small,
    _too_large,
    _strided,
    _transposed,
    _channels_last,
    _offset,
    _double,
    _byte,
]

# The CPU's kernels write outside the memory of such tensors, in torch itself.
_NEEDS_DENSE_OUT = {"linalg_lu", "lu_unpack", "tril", "triu"}
_DENSE = (_fitting, _empty, _too_small, _too_large, _offset, _double, _byte)


def _outs(way: _Way, result: Any) -> Any:
    """An argument for out= for a tensor or several; None if there is none."""
    if isinstance(result, torch.Tensor):
        if result.layout is not torch.strided and way is not _fitting:
            return None  # sparse tensors have other shapes than these
        return way(result)
    if not isinstance(result, tuple | list) or not _are_tensors(result):
        return None
    outs = [way(one) for one in result]
    if any(out is None for out in outs):
        return None
    return outs if isinstance(result, list) else tuple(outs)


def _are_tensors(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(one, torch.Tensor) for one in values)


def _onto_input(arguments: Arguments, result: Any) -> Iterator[Arguments]:
    """Arguments whose out= shares memory with the first of them: all of it, and a part."""
    first = arguments.args[0]
    if (
        not isinstance(first, torch.Tensor)
        or not isinstance(result, torch.Tensor)
        or not first.layout == result.layout == torch.strided
        or (first.shape, first.dtype) != (result.shape, result.dtype)
        or first.numel() < 2
    ):
        return
    yield arguments.with_keywords(out=first)
    memory = first.new_ones(first.numel() + 1)
    moved = memory[:-1].view(first.shape).copy_(first)
    others = Arguments((moved, *arguments.args[1:]), arguments.kwargs)
    yield others.with_keywords(out=memory[1:].view(first.shape))


class TestOut(SweepTestCase):
    @parametrize("info", _WITH_OUT)
    def test_out(self, info: Any) -> None:
        function = call_of(info, info.op)
        ways = _WAYS_TO_WRITE
        if info.formatted_name in _NEEDS_DENSE_OUT:
            ways = [way for way in ways if way in _DENSE]

        def fitting_of(sample: Any) -> _Case | None:
            arguments = arguments_of(info, sample)
            result = outcome(function, arguments, CPU).result
            out = _outs(_fitting, result)
            return None if out is None else (arguments, result, out)

        def others_of(case: _Case) -> list[Any]:
            _, result, fitting = case
            outs = [_outs(way, result) for way in ways]
            return [one for one in outs if one is not None] or [fitting]

        def calls(dtype: torch.dtype) -> Iterator[CallSequence]:
            name = f"{info.formatted_name} {dtype}"
            cases = [fitting_of(sample) for sample in samples_of(info, dtype, _FIRST)]
            possible = [one for one in cases if one is not None]
            count = _SAMPLES if dtype == torch.float32 else _SAMPLES_OF_OTHERS
            before = None
            for case, out in crossed(name, possible, count, others_of, _WAYS):
                arguments, _, fitting_out = case
                fitting = arguments.with_keywords(out=fitting_out)
                if case is not before:
                    yield Call(function, fitting)
                before = case
                other = arguments.with_keywords(out=out)
                changed = arguments.with_other_numbers().with_keywords(out=out)
                yield CallSequence(function, (other, fitting, changed))

        self.sweep(info.formatted_name, "out", dtypes_under_test(info), calls)

    @parametrize("info", _WITH_OUT)
    def test_out_that_is_refused(self, info: Any) -> None:
        """Where the CPU writes nonetheless, the result is undefined, and nothing is compared."""
        function = call_of(info, info.op)

        def calls(dtype: torch.dtype) -> Iterator[CallSequence]:
            name = f"{info.formatted_name} refused {dtype}"
            for sample in sampled(name, list(samples_of(info, dtype, _FIRST)), _SAMPLES):
                arguments = arguments_of(info, sample)
                result = outcome(function, arguments, CPU).result
                candidates = list(_onto_input(arguments, result))
                out = _outs(_expanded, result)
                if out is not None:
                    candidates.append(arguments.with_keywords(out=out))
                for candidate in candidates:
                    if isinstance(outcome(function, candidate, CPU).result, Exception):
                        yield CallSequence(function, (arguments, arguments, candidate, arguments))

        dtypes = dtypes_under_test(info)
        dtypes = [one for one in dtypes if one == torch.float32] or dtypes[:1]
        self.sweep(info.formatted_name, "out refused", dtypes, calls)


instantiate_parametrized_tests(TestOut)
