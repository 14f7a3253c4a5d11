"""Every operator, compiled by Inductor for the device, gives the same as compiled for the CPU.

The same bits, and the same gradients if it has any. A kernel is a call of the C++ compiler, so the
default run has a few operators, and a full one a sample of each.
"""

import pytest
from openreg_target import TARGET

# isort: split
from collections.abc import Callable
from typing import Any

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests
from extras.inductor.compiled import CompiledTestCase, kernel_sources
from torch._dynamo.utils import counters

from torch_openreg.conformance.arguments import CPU, Arguments
from torch_openreg.conformance.comparison import EXACT
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    gradients_of,
    samples_of,
)
from torch_openreg.conformance.records import Record, write_record
from torch_openreg.conformance.sweep import (
    DEVICE,
    Outcome,
    dtype_name,
    outcome,
    outcome_difference,
    sampled,
)
from torch_openreg.conformance.target import target

pytestmark = pytest.mark.sample(0.053)

__all__ = ["TARGET"]

_OPERATORS = 12  # of the default run
_WITH_DTYPES = [one for one in OPERATORS if dtypes_under_test(one.arg_values)]


def compiled_outcome(
    function: Callable[..., Any], arguments: Arguments, device: torch.device
) -> tuple[Outcome, int]:
    """Calls a function that compiles; returns how many graphs there were, too."""
    torch._dynamo.reset()
    counters.clear()
    result = outcome(function, arguments, device)
    return result, counters["stats"]["unique_graphs"]


class TestCompiled(CompiledTestCase):
    @parametrize("info", sampled("compiled", _WITH_DTYPES, _OPERATORS))
    def test_results_and_gradients(self, info: Any) -> None:
        name = info.formatted_name
        record = Record(name, "compiled")
        dtypes = dtypes_under_test(info)
        dtype = torch.float32 if torch.float32 in dtypes else torch.int64
        is_differentiable = dtype in info.supported_backward_dtypes("cpu")
        sample = next(samples_of(info, dtype, 1, is_differentiable))
        arguments = arguments_of(info, sample)
        function = torch.compile(info.op)
        if is_differentiable:
            function = gradients_of(function, choose=sample.output_process_fn_grad)
        function = call_of(info, function)
        with kernel_sources():
            expected, graphs = compiled_outcome(function, arguments, CPU)
            actual, graphs_on_device = compiled_outcome(function, arguments, DEVICE)
        text = outcome_difference(actual, expected, EXACT)
        gap = target().gap(name, "compiled", dtype_name(dtype))
        self.assertEqual(text is None, gap is None, f"{name} with {arguments}: {text or gap}")
        self.assertEqual(graphs_on_device, graphs, f"graphs of {name}")
        if gap is not None:
            record.listed = 1
            write_record(record)
            return
        record.passed = 1
        # Without operators that Dynamo runs in eager mode, or that Inductor rejects, on both.
        if graphs and not isinstance(expected.result, Exception):
            record.samples = 1
        write_record(record)


instantiate_parametrized_tests(TestCompiled)

if __name__ == "__main__":
    run_tests()
