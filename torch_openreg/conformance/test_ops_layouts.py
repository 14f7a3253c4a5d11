"""Every operator gives the CPU's results and gradients for arguments in every layout.

Calls alternate between two layouts and two sets of values: state cached by one call must not affect
another. Uninitialized memory reads as NaN.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_openreg.conformance.arguments import Arguments
from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize
from torch_openreg.conformance.layouts import LAYOUTS, with_layout
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    gradients_of,
    samples_of,
    with_other_numbers_of,
)
from torch_openreg.conformance.sweep import CallSequence, Counts, SweepTestCase, crossed, sampled

_FIRST = 12  # samples to choose from
_SAMPLES = 3  # of each dtype
_LAYOUTS = Counts(usual=2, thorough=len(LAYOUTS) + 1, others=1)  # of each sample
_OTHER_DTYPES = 1  # beside float32

_WITH_INPLACE = [one for one in OPERATORS if one.arg_values.inplace_variant]
_DIFFERENTIABLE = [
    one for one in OPERATORS if torch.float32 in one.arg_values.supported_backward_dtypes("cpu")
]
_COMPLEX = (torch.complex64, torch.complex128)

# Cases in which the CPU itself is wrong.
_NOT_ON_CPU = {
    # As are the results of these.
    ("conj", "negated"): "has no kernel for half complex numbers that are conjugated and negated",
    ("H", "negated"): "has no kernel for half complex numbers that are conjugated and negated",
    ("mH", "negated"): "has no kernel for half complex numbers that are conjugated and negated",
    ("nn_functional_max_pool1d", "negated"): "ignores the negative bit",
    ("nn_functional_pdist", "empty"): "crashes in the backward pass",
    **dict.fromkeys(
        [
            ("torch_ops_aten__scaled_dot_product_flash_attention_for_cpu", layout)
            for layout in ("transposed", "swapped", "channels_last", "mixed")
        ],
        "reads memory that is not its inputs', as if their last dimension were contiguous",
    ),
    # Running statistics of one element are written by several threads.
    ("_batch_norm_with_update", "expanded"): "undefined",
    ("_native_batch_norm_legit", "expanded"): "undefined",
    ("native_batch_norm", "expanded"): "undefined",
    ("nn_functional_batch_norm", "expanded"): "undefined",
    ("native_group_norm", "expanded"): "reads weights as if they were contiguous, on CUDA as well",
    ("index_reduce_prod", "expanded"): "fails one of torch's internal assertions",
    # Walks through a copy with the strides of the input; see csrc/aten/ops/Median.cpp.
    ("masked_median", "expanded"): "reads outside of its input",
    ("median", "expanded"): "reads outside of its input",
    ("nanmedian", "expanded"): "reads outside of its input",
}


def _dtypes_of(info: Any) -> list[torch.dtype]:
    """float32, a few others, and a complex one, which may be conjugated."""
    dtypes = dtypes_under_test(info)
    usual = [one for one in dtypes if one == torch.float32]
    others = [one for one in dtypes if one not in usual and one not in _COMPLEX]
    return [
        *usual,
        *sampled(info.formatted_name, others, _OTHER_DTYPES),
        *sampled(info.formatted_name, [one for one in dtypes if one in _COMPLEX], 1),
    ]


def _relaid(operator: str, arguments: Arguments) -> list[Arguments]:
    """The arguments in each other layout that they can have."""
    layouts = [one for one in (*LAYOUTS, "mixed") if (operator, one) not in _NOT_ON_CPU]
    variants = [with_layout(arguments, layout) for layout in layouts]
    return [one for one in variants if one is not None]


class TestLayouts(SweepTestCase):
    def check_layouts(
        self,
        info: Any,
        variant: str,
        dtypes: list[torch.dtype],
        function_of: Callable[[Any], Callable[..., Any]],
        requires_grad: bool = False,
    ) -> None:
        def calls(dtype: torch.dtype) -> Iterator[CallSequence]:
            name = f"{info.formatted_name} {variant} {dtype}"

            def relaid(sample: Any) -> list[Arguments]:
                return _relaid(info.formatted_name, arguments_of(info, sample))

            samples = samples_of(info, dtype, _FIRST, requires_grad)
            for sample, other in crossed(name, samples, _SAMPLES, relaid, _LAYOUTS):
                plain = arguments_of(info, sample)
                changed, changed_plain = (
                    with_other_numbers_of(info, one) for one in (other, plain)
                )
                yield CallSequence(
                    function_of(sample), (plain, other, changed, changed_plain, other)
                )

        self.sweep(info.formatted_name, variant, dtypes, calls)

    @parametrize("info", OPERATORS)
    def test_forward(self, info: Any) -> None:
        function = call_of(info, info.op)
        self.check_layouts(info, "layouts", _dtypes_of(info), lambda _: function)

    @parametrize("info", _WITH_INPLACE)
    def test_inplace(self, info: Any) -> None:
        function = call_of(info, info.inplace_variant)
        self.check_layouts(info, "layouts inplace", _dtypes_of(info), lambda _: function)

    @parametrize("info", _DIFFERENTIABLE)
    def test_backward(self, info: Any) -> None:
        def function_of(sample: Any) -> Callable[..., Any]:
            return call_of(info, gradients_of(info.op, choose=sample.output_process_fn_grad))

        dtypes = [
            one
            for one in (torch.float32, torch.complex64)
            if one in info.supported_backward_dtypes("cpu")
        ]
        self.check_layouts(info, "layouts backward", dtypes, function_of, requires_grad=True)


instantiate_parametrized_tests(TestLayouts)
