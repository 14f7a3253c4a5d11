"""An error on the CPU is an error of the same type on the device, raised by the call.

A good call with the same metadata comes before, if there is one: what was learned from it must not
hide the error. Errors that kernels find in their data may come later, as on CUDA.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_openreg.conformance.arguments import CPU, Arguments
from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize
from torch_openreg.conformance.mutations import with_other_contents, with_other_numbers
from torch_openreg.conformance.operators import (
    MAX_UNPOOLS,
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
)
from torch_openreg.conformance.sweep import CallSequence, SweepTestCase, outcome, seed

_WITH_ERRORS = [
    one
    for one in OPERATORS
    if one.arg_values.error_inputs_func is not None and dtypes_under_test(one.arg_values)
]

# Candidates for a good call to try.
_TRIES = 30


def _good_arguments(function: Callable[..., Any], wrong: Arguments) -> Iterator[Arguments]:
    """Arguments that differ in one number or in the contents of one tensor, and are right."""
    others = itertools.chain(with_other_contents(wrong), with_other_numbers(wrong))
    for _, candidate in itertools.islice(others, _TRIES):
        if not isinstance(outcome(function, candidate, CPU).result, Exception):
            yield candidate
            return


class TestErrors(SweepTestCase):
    @parametrize("info", _WITH_ERRORS)
    def test_errors(self, info: Any) -> None:
        function = call_of(info, info.op)

        def calls(_: torch.dtype) -> Iterator[CallSequence]:
            seed()
            for error_input in info.error_inputs_func(info, "cpu"):
                wrong = arguments_of(info, error_input.sample_input)
                yield CallSequence(function, (wrong, wrong))
                if info.formatted_name in MAX_UNPOOLS:
                    continue  # all indices are 0, so good calls write one element in any order
                for good in _good_arguments(function, wrong):
                    yield CallSequence(function, (good, good, wrong, good, wrong))

        # The inputs of the database have their own dtypes.
        self.sweep(info.formatted_name, "errors", [torch.float32], calls)


instantiate_parametrized_tests(TestErrors)
