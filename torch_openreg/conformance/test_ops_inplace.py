"""The in-place form of every operator gives the CPU's results."""

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
)
from torch_openreg.conformance.sweep import Call, SweepTestCase

_SAMPLES = 2  # of each dtype but float32

_WITH_INPLACE = [one for one in OPERATORS if one.arg_values.inplace_variant]


class TestInplace(SweepTestCase):
    @parametrize("info", _WITH_INPLACE)
    def test_inplace(self, info: Any) -> None:
        function = call_of(info, info.inplace_variant)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in samples_of(info, dtype, limit):
                if isinstance(sample.input, torch.Tensor):
                    yield Call(function, arguments_of(info, sample))

        self.sweep(info.formatted_name, "inplace", dtypes_under_test(info), calls)


instantiate_parametrized_tests(TestInplace)
