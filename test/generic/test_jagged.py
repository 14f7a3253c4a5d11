"""Every operator that takes nested tensors of the layout torch.jagged gives the CPU's results.

torch makes its database of them from the one of operators, for float32. By default some operators
run.
"""

from openreg_target import TARGET

# isort: split
from collections.abc import Iterator
from typing import Any

import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch.testing._internal.opinfo.definitions.nested import njt_op_db
from torch.utils._pytree import tree_map_only

from torch_openreg.conformance.comparison import difference
from torch_openreg.conformance.operators import arguments_of, call_of, gradients_of, samples_of
from torch_openreg.conformance.sweep import DEVICE, Call, SweepTestCase, sampled

__all__ = ["TARGET"]

_OPERATORS = 24
_SAMPLES = 4

_ALL = [
    subtest(info, name=info.formatted_name)
    for info in njt_op_db
    if info.supports_njt and torch.float32 in info.supported_dtypes("cpu")
]
# torch crashes in the backward of the part without elements, of the CPU as well.
_CRASHES = {"split_with_sizes"}
_DIFFERENTIABLE = [
    one
    for one in _ALL
    if torch.float32 in one.arg_values.supported_backward_dtypes("cpu")
    and one.arg_values.name not in _CRASHES
]


def _values_of(result: Any) -> Any:
    """The same result with the elements of nested tensors in a strided one."""
    return tree_map_only(
        torch.Tensor, lambda one: one.values() if one.layout == torch.jagged else one, result
    )


class TestJagged(SweepTestCase):
    @parametrize("info", sampled("jagged", _ALL, _OPERATORS))
    def test_forward(self, info: Any) -> None:
        function = call_of(info, info.op)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for sample in samples_of(info, dtype, _SAMPLES):
                yield Call(function, arguments_of(info, sample))

        self.sweep(info.formatted_name, "jagged", [torch.float32], calls)

    @parametrize("info", sampled("jagged backward", _DIFFERENTIABLE, _OPERATORS))
    def test_backward(self, info: Any) -> None:
        function = call_of(info, gradients_of(info.op, choose=_values_of))

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for sample in samples_of(info, dtype, _SAMPLES, requires_grad=True):
                yield Call(function, arguments_of(info, sample))

        self.sweep(info.formatted_name, "jagged backward", [torch.float32], calls)


class TestComparison(OpenRegTestCase):
    def test_each_part_of_a_nested_tensor_is_compared(self):
        values, offsets = torch.arange(12.0).view(6, 2), torch.tensor([0, 2, 6])
        make = torch.nested.nested_tensor_from_jagged
        expected = make(values, offsets)
        self.assertIsNone(difference(expected.to(DEVICE), expected, DEVICE))
        for other, text in (
            (make(values + 1, offsets), r"\.values: 12 of 12 elements differ"),
            (make(values, torch.tensor([0, 3, 6])), r"\.offsets: 1 of 3 elements differ"),
            (make(values, offsets, torch.tensor([2, 3])), "has lengths True instead of False"),
            (make(values.t(), offsets, jagged_dim=2), "ragged dimension 2 instead of 1"),
            (make(values[..., None], offsets), "dimensions 4 instead of 3"),
        ):
            self.assertRegex(str(difference(other.to(DEVICE), expected, DEVICE)), text)


instantiate_parametrized_tests(TestJagged)

if __name__ == "__main__":
    run_tests()
