"""The settings at the time of a call hold for it, whatever they are when its kernel runs.

All samples with all settings in both orders would take days. In a full run, every sample has some
of them, and a few samples of each operator and dtype have all.
"""

import pytest
from openreg_target import TARGET

# isort: split
from collections.abc import Iterator
from typing import Any

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests
from settings import SETTINGS, SettingChange, changes_of

from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    gradients_of,
    samples_of,
)
from torch_openreg.conformance.sweep import Counts, SweepTestCase, crossed

pytestmark = pytest.mark.sample(0.053)

__all__ = ["TARGET"]

_FIRST = 8  # samples to choose from
_SAMPLES = 2  # of each dtype
_CHANGES = Counts(usual=6, thorough=2 * len(SETTINGS), others=4)  # of each sample
_DTYPES = (torch.float32, torch.int64, torch.float16)

_DIFFERENTIABLE = [
    one for one in OPERATORS if torch.float32 in one.arg_values.supported_backward_dtypes("cpu")
]

_INTERPOLATIONS = [
    f"nn_functional_{name}"
    for name in (
        "interpolate_bicubic",  # since torch 2.15
        "interpolate_bilinear",
        "interpolate_trilinear",
        "upsample_bilinear",
    )
]

# What torch does otherwise for every device that is not the CPU.
_OTHERWISE = {
    ("deterministic algorithms", name): "torch.nn.functional decomposes it, in this mode"
    for name in _INTERPOLATIONS
}
# These belong to the thread, and the backward pass of a device has a separate thread:
# test_kernel_settings.py.
_OF_THREADS = ("flush-denormal", "number of threads")


class TestSettings(SweepTestCase):
    def check_settings(
        self, info: Any, variant: str, dtypes: list[torch.dtype], is_backward: bool = False
    ) -> None:
        def calls(dtype: torch.dtype) -> Iterator[SettingChange]:
            name = f"{info.formatted_name} {variant} {dtype}"
            settings = [
                one
                for one in SETTINGS
                if (not one.dtypes or dtype in one.dtypes)
                and (one.name, info.formatted_name) not in _OTHERWISE
                and not (is_backward and one.name in _OF_THREADS)
            ]

            def changes(sample: Any) -> Iterator[SettingChange]:
                function = info.op
                if is_backward:
                    function = gradients_of(function, choose=sample.output_process_fn_grad)
                return changes_of(call_of(info, function), arguments_of(info, sample), settings)

            samples = samples_of(info, dtype, _FIRST, is_backward)
            for _, change in crossed(name, samples, _SAMPLES, changes, _CHANGES):
                yield change

        self.sweep(info.formatted_name, variant, dtypes, calls)

    @parametrize("info", OPERATORS)
    def test_forward(self, info):
        dtypes = [one for one in dtypes_under_test(info) if one in _DTYPES] or dtypes_under_test(
            info
        )[:1]
        self.check_settings(info, "settings", dtypes)

    @parametrize("info", _DIFFERENTIABLE)
    def test_backward(self, info):
        self.check_settings(info, "settings backward", [torch.float32], is_backward=True)


instantiate_parametrized_tests(TestSettings)

if __name__ == "__main__":
    run_tests()
