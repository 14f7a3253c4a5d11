"""Every operator with samples in a sparse layout gives the CPU's results and gradients.

By default some operators run.
"""

from openreg_target import TARGET

# isort: split
import itertools
import unittest
from collections.abc import Iterator
from typing import Any

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests, subtest
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map_only

from torch_openreg.conformance.operators import (
    arguments_of,
    call_of,
    dtypes_under_test,
    gradients_of,
)
from torch_openreg.conformance.sweep import IS_FULL, Call, SweepTestCase, sampled, seed

__all__ = ["TARGET"]

_CASES = 16
_SAMPLES = 2

_LAYOUTS = {
    "sparse_coo": torch.sparse_coo,
    "sparse_csr": torch.sparse_csr,
    "sparse_csc": torch.sparse_csc,
    "sparse_bsr": torch.sparse_bsr,
    "sparse_bsc": torch.sparse_bsc,
}


def _has_samples(info: Any, layout: str) -> bool:
    function = getattr(info, f"sample_inputs_{layout}_func")
    return getattr(function, "__name__", "") != "_sample_inputs_unspecified"


_ALL = [
    subtest((info, layout), name=f"{info.formatted_name}_{layout}")
    for info in op_db
    for layout in _LAYOUTS
    if _has_samples(info, layout) and dtypes_under_test(info)
]
_DIFFERENTIABLE = [
    one for one in _ALL if torch.float32 in one.arg_values[0].supported_backward_dtypes("cpu")
]


def _samples_of(
    info: Any, layout: str, dtype: torch.dtype, requires_grad: bool = False
) -> Iterator[Any]:
    """The first samples in a layout, on the CPU, always the same ones; all in a full run."""
    samples = info.sample_inputs_sparse(_LAYOUTS[layout], "cpu", dtype, requires_grad)
    for _ in itertools.count() if IS_FULL else range(_SAMPLES):
        seed()
        try:
            sample = next(samples, None)
        except unittest.SkipTest:  # there is none
            return
        if sample is None:
            return
        yield sample


def _dense(result: Any) -> Any:
    return tree_map_only(
        torch.Tensor, lambda one: one if one.layout == torch.strided else one.to_dense(), result
    )


class TestSparse(SweepTestCase):
    @parametrize("info,layout", sampled("sparse", _ALL, _CASES))
    def test_forward(self, info: Any, layout: str) -> None:
        function = call_of(info, info.op)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for sample in _samples_of(info, layout, dtype):
                yield Call(function, arguments_of(info, sample))

        dtypes = dtypes_under_test(info)
        dtypes = [one for one in dtypes if one == torch.float32] or dtypes[:1]
        self.sweep(info.formatted_name, layout, dtypes, calls)

    @parametrize("info,layout", sampled("sparse backward", _DIFFERENTIABLE, _CASES))
    def test_backward(self, info: Any, layout: str) -> None:
        function = call_of(info, gradients_of(info.op, choose=_dense))

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for sample in _samples_of(info, layout, dtype, requires_grad=True):
                yield Call(function, arguments_of(info, sample))

        self.sweep(info.formatted_name, f"{layout} backward", [torch.float32], calls)


instantiate_parametrized_tests(TestSparse)

if __name__ == "__main__":
    run_tests()
