"""What an operator warns of on the CPU it warns of on the device, in each call."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_openreg.conformance.arguments import CPU, Arguments
from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    samples_of,
)
from torch_openreg.conformance.sweep import DEVICE, CallSequence, SweepTestCase, outcome, sampled
from torch_openreg.conformance.target import target

_FIRST = 12  # samples to choose from
_SAMPLES = 6
_DTYPES = (torch.float32, torch.int64)


@dataclass(frozen=True)
class WarningCall(CallSequence):
    """A call that is repeated, as some warnings come once in a process."""

    def difference(self) -> tuple[str | None, frozenset[str]]:
        (arguments,) = self.steps
        _warnings_of(self.function, arguments, CPU)
        expected = _warnings_of(self.function, arguments, CPU)
        for number in (1, 2, 3):
            target().forget_waits()
            actual = _warnings_of(self.function, arguments, DEVICE)
            for text in actual ^ expected:
                which = "an unexpected" if text in actual else "no"
                return f"call {number} with {arguments}: {which} warning {text!r}", frozenset()
        return None, frozenset(target().waits())


def _warnings_of(
    function: Callable[..., Any], arguments: Arguments, device: torch.device
) -> set[str]:
    """The texts of the warnings in a call, without the places in torch's source."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome(function, arguments, device)
    return {str(one.message).split("(Triggered internally")[0].strip() for one in caught}


class TestWarnings(SweepTestCase):
    @parametrize("info", OPERATORS)
    def test_warnings(self, info: Any) -> None:
        function = call_of(info, info.op)

        def calls(dtype: torch.dtype) -> Iterator[WarningCall]:
            samples = list(samples_of(info, dtype, _FIRST))
            for sample in sampled(f"{info.formatted_name} {dtype}", samples, _SAMPLES):
                yield WarningCall(function, (arguments_of(info, sample),))

        dtypes = [one for one in dtypes_under_test(info) if one in _DTYPES] or dtypes_under_test(
            info
        )[:1]
        self.sweep(info.formatted_name, "warnings", dtypes, calls)


instantiate_parametrized_tests(TestWarnings)
