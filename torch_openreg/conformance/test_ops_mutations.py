"""A call with another number, or other contents, after calls with the same metadata.

State that the operator has cached from the calls before must not affect the last one: it has to
give the CPU's result, or raise the CPU's error at the call.
"""

from collections.abc import Callable, Container, Iterator
from typing import Any

import torch

from torch_openreg.conformance.arguments import Arguments
from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize
from torch_openreg.conformance.mutations import with_other_contents, with_other_numbers
from torch_openreg.conformance.operators import (
    MAX_UNPOOLS,
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    samples_of,
)
from torch_openreg.conformance.sweep import CallSequence, Counts, SweepTestCase, crossed

_FIRST = 12  # samples to choose from
_SAMPLES = 3  # of each dtype
_MUTATIONS = Counts(usual=10, thorough=1000, others=4)  # of each sample

# A byte cannot hold every number, and an integer no fraction.
_DTYPES = (torch.float32, torch.uint8, torch.int64)

# Their recurrences end at NaN. If the first value is NaN, the result is an uninitialized variable.
_POLYNOMIALS = [
    *(f"special_{kind}chebyshev_polynomial_{name}" for kind in ("", "shifted_") for name in "uvw"),
    "special_shifted_chebyshev_polynomial_t",
    "special_laguerre_polynomial_l",
    "special_legendre_polynomial_p",
]

# Arguments that the CPU alone refuses, and wrong ones that it does not check: its behavior is
# undefined.
_UNCHECKED_NUMBERS = {
    **dict.fromkeys(
        ("linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex", "lu"),
        "CUDA computes without pivots",
    ),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit"),
        "whether it trains is a number; see operators.py for evaluation",
    ),
    "grid_sampler_2d": "modes are numbers",
    "grid_sampler_3d": "modes are numbers",
    "nn_functional_scaled_dot_product_attention": "a negative probability of dropout is a choice "
    "of algorithm",
    "native_group_norm": "writes no result if the number of samples is 0, since torch 2.14",
    "_upsample_bilinear2d_aa": "scales that contradict the sizes: no weight is computed for rows "
    "that lie outside of the input",
}
_UNCHECKED_CONTENTS = {
    **dict.fromkeys(MAX_UNPOOLS, "writes in any order if indices repeat"),
    "linalg_eigvals": "crashes with NaN",
    "linalg_ldl_solve": "crashes with wrong pivots",
    "nn_functional_ctc_loss": "reads past the log-probabilities if a target is not a class",
    "_segment_reduce_lengths": "accepts wrong lengths with unsafe=True",
    **dict.fromkeys(("quantile", "nanquantile"), "checks the values of q on the CPU only"),
    **dict.fromkeys(_POLYNOMIALS, "reads an uninitialized variable if an argument is NaN"),
}

_WITH_INPLACE = [one for one in OPERATORS if one.arg_values.inplace_variant]

_Mutate = Callable[[Arguments], Iterator[tuple[str, Arguments]]]


def _without(names: Container[str]) -> list[Any]:
    return [one for one in OPERATORS if one.arg_values.formatted_name not in names]


class TestMutations(SweepTestCase):
    def check_mutations(
        self, info: Any, variant: str, mutate: _Mutate, function: Callable[..., Any]
    ) -> None:
        def calls(dtype: torch.dtype) -> Iterator[CallSequence]:
            name = f"{info.formatted_name} {variant} {dtype}"
            samples = [arguments_of(info, one) for one in samples_of(info, dtype, _FIRST)]
            for good, (_, other) in crossed(name, samples, _SAMPLES, mutate, _MUTATIONS):
                yield CallSequence(function, (good, good, other, good, other))

        dtypes = [one for one in dtypes_under_test(info) if one in _DTYPES] or dtypes_under_test(
            info
        )[:1]
        self.sweep(info.formatted_name, variant, dtypes, calls)

    @parametrize("info", _without(_UNCHECKED_NUMBERS))
    def test_numbers(self, info: Any) -> None:
        self.check_mutations(info, "numbers", with_other_numbers, call_of(info, info.op))

    @parametrize("info", _WITH_INPLACE)
    def test_numbers_inplace(self, info: Any) -> None:
        function = call_of(info, info.inplace_variant)
        self.check_mutations(info, "numbers inplace", with_other_numbers, function)

    @parametrize("info", _without(_UNCHECKED_CONTENTS))
    def test_contents(self, info: Any) -> None:
        self.check_mutations(info, "contents", with_other_contents, call_of(info, info.op))


instantiate_parametrized_tests(TestMutations)
