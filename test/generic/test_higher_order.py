"""torch's custom operators and higher-order operators give the CPU's results and gradients."""

from openreg_target import TARGET

# isort: split
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests, subtest
from torch.nn.attention.flex_attention import BlockMask
from torch.testing._internal.custom_op_db import custom_op_db
from torch.testing._internal.hop_db import hop_db

from torch_openreg.conformance.operators import arguments_of, gradients_of, samples_of
from torch_openreg.conformance.sweep import Call, SweepTestCase, sampled

__all__ = ["TARGET"]

_OPERATORS = 8

_ALL = [subtest(info, name=info.formatted_name) for info in (*custom_op_db, *hop_db)]
_DIFFERENTIABLE = [one for one in _ALL if one.arg_values.supports_autograd]


def _call_of(info: Any) -> Callable[..., Any]:
    """The operator, with masks of FlexAttention where its tensors are."""

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        moved = [one.to(first.device) if isinstance(one, BlockMask) else one for one in args]
        return info.op(first, *moved, **kwargs)

    return call


class TestHigherOrder(SweepTestCase):
    @parametrize("info", sampled("higher order", _ALL, _OPERATORS))
    def test_forward(self, info: Any) -> None:
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for sample in samples_of(info, dtype, None):
                yield Call(_call_of(info), arguments_of(info, sample))

        self.sweep(info.formatted_name, "higher order", [torch.float32], calls)

    @parametrize("info", sampled("higher order backward", _DIFFERENTIABLE, _OPERATORS))
    def test_backward(self, info: Any) -> None:
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for sample in samples_of(info, dtype, None, requires_grad=True):
                yield Call(gradients_of(_call_of(info)), arguments_of(info, sample))

        self.sweep(info.formatted_name, "higher order backward", [torch.float32], calls)


instantiate_parametrized_tests(TestHigherOrder)

if __name__ == "__main__":
    run_tests()
