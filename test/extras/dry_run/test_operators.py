"""Operators have results of the right sizes in a dry run in which nothing is computed at all."""

import itertools

import pytest
import torch
from common import DEVICE_TYPE, run_tests
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    subtest,
)
from torch.utils import _pytree as pytree

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.15)

# Each storage with an element is large. The process has nothing but this file.
_C._dry_run_start(False, "worst", "", (), small_bytes=0)

_SAMPLES = 4

# Operators without sizes, or with others than the CPU's, with the reason. With "worst", those of
# nonzero and the like are the largest.
_IN_DATA = "its sizes depend on data, and are guessed"
_STATISTICS = "the description has statistics that the CPU does not save"
_CHECKED = "it checks values, which are zeros"
_SPARSE = "the number of elements of a sparse tensor depends on data"
OTHER_SIZES = {
    "_native_batch_norm_legit": _STATISTICS,
    "argwhere": _IN_DATA,
    "as_strided_partial_views": "a copy on the device has not all of the sample's storage",
    "combinations": _IN_DATA,
    "cov": "it writes in place what the backward needs if the weights are zeros",
    "istft": _CHECKED,
    "linalg_eig": _CHECKED,
    "linalg_lstsq": "there is no description of linalg_lstsq.out",
    "linalg_lstsq_grad_oriented": "there is no description of linalg_lstsq.out",
    "masked_select": _IN_DATA,
    "native_batch_norm": _STATISTICS,
    "nn_functional_batch_norm_without_cudnn": _STATISTICS,
    "nn_functional_one_hot": "the number of classes is a value, which is zero",
    "nonzero": _IN_DATA,
    "sparse_mm_reduce": _SPARSE,
    "sparse_sampled_addmm": _SPARSE,
    "tensor_split": "it takes indices on the host",
    "to_sparse": _SPARSE,
}
if DEVICE_TYPE == "cuda":
    OTHER_SIZES |= dict.fromkeys(("histogram", "histogramdd"), "CUDA has no kernel")
    OTHER_SIZES |= dict.fromkeys(
        ("torch__scaled_mm", "torch__scaled_mm_v2"), "GPUs of capability 8.0 have no such product"
    )
_OPERATORS = [
    op for op in op_db if op.supported_dtypes("cpu") and not op.name.startswith("jiterator")
]


def _dtype_of(op):
    for dtype in (torch.float32, torch.complex64, torch.int64, torch.bool):
        if op.supports_dtype(dtype, "cpu"):
            return dtype
    return next(iter(op.supported_dtypes("cpu")))


def _described(results):
    return [
        (list(one.shape), str(one.dtype)) if isinstance(one, torch.Tensor) else type(one).__name__
        for one in pytree.tree_leaves(results)
    ]


def _moved(value):
    if isinstance(value, torch.Tensor):
        moved = value.detach().to(DEVICE_TYPE)
        return moved.requires_grad_(value.requires_grad)
    return torch.device(DEVICE_TYPE) if value in ("cpu", torch.device("cpu")) else value


class TestSizes(TestCase):
    @parametrize("op", [subtest(op, name=op.formatted_name) for op in _OPERATORS])
    def test_results_have_the_sizes_of_the_cpu(self, op):
        dtype = _dtype_of(op)
        is_differentiable = dtype.is_floating_point or dtype.is_complex
        samples = op.sample_inputs(
            "cpu", dtype, requires_grad=op.supports_autograd and is_differentiable
        )
        found = []
        for sample in itertools.islice(samples, _SAMPLES):
            expected = op(sample.input, *sample.args, **sample.kwargs)
            try:
                arguments = pytree.tree_map(_moved, (sample.input, sample.args, sample.kwargs))
                results = op(arguments[0], *arguments[1], **arguments[2])
                differentiate(results)
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}".splitlines()[0])
                continue
            if _described(results) != _described(expected):
                found.append(f"{_described(results)} instead of {_described(expected)}")
        if op.formatted_name in OTHER_SIZES:
            self.assertTrue(found, OTHER_SIZES[op.formatted_name])
        else:
            self.assertFalse(found, "\n".join(found))


def differentiate(results):
    tensors = [
        one
        for one in pytree.tree_leaves(results)
        if isinstance(one, torch.Tensor) and one.requires_grad
    ]
    if tensors:
        torch.autograd.backward(tensors, [torch.ones_like(one) for one in tensors])


instantiate_parametrized_tests(TestSizes)

if __name__ == "__main__":
    run_tests()
