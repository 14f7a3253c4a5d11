"""The gradients of every differentiable operator are the CPU's."""

from collections.abc import Iterator
from typing import Any

import torch

from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    gradients_of,
    samples_of,
)
from torch_openreg.conformance.sweep import Call, SweepTestCase

_DTYPES = (torch.float32, torch.complex64)
_SAMPLES = 3  # of complex64

_DIFFERENTIABLE = [
    one for one in OPERATORS if set(one.arg_values.supported_backward_dtypes("cpu")) & set(_DTYPES)
]


class TestBackward(SweepTestCase):
    @parametrize("info", _DIFFERENTIABLE)
    def test_backward(self, info: Any) -> None:
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in samples_of(info, dtype, limit, requires_grad=True):
                function = call_of(
                    info, gradients_of(info.op, choose=sample.output_process_fn_grad)
                )
                yield Call(function, arguments_of(info, sample))

        dtypes = [one for one in _DTYPES if one in info.supported_backward_dtypes("cpu")]
        self.sweep(info.formatted_name, "backward", dtypes, calls)


instantiate_parametrized_tests(TestBackward)
