"""Every operator of torch's database gives the CPU's results."""

from collections.abc import Iterator
from typing import Any

import torch

from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    samples_of,
    with_other_numbers_of,
)
from torch_openreg.conformance.sweep import Call, SweepTestCase

_SAMPLES = 3  # of each dtype but float32
_DTYPES_OF_REPETITION = (torch.float32, torch.int64, torch.bool)


class TestForward(SweepTestCase):
    @parametrize("info", OPERATORS)
    def test_forward(self, info: Any) -> None:
        function = call_of(info, info.op)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in samples_of(info, dtype, limit):
                yield Call(function, arguments_of(info, sample))

        self.sweep(info.formatted_name, "forward", dtypes_under_test(info), calls)

    @parametrize("info", OPERATORS)
    def test_repetition_with_other_numbers(self, info: Any) -> None:
        """What was learned from one call must not depend on the numbers in its tensors."""
        function = call_of(info, info.op)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for sample in samples_of(info, dtype, _SAMPLES):
                arguments = arguments_of(info, sample)
                others = with_other_numbers_of(info, arguments)
                yield Call(function, others, before=arguments)

        dtypes = [one for one in dtypes_under_test(info) if one in _DTYPES_OF_REPETITION]
        self.sweep(info.formatted_name, "repetition", dtypes or dtypes_under_test(info)[:1], calls)


instantiate_parametrized_tests(TestForward)
