"""torch.jit.trace records the same for every operator on the device as on the CPU.

Compared are the kinds of the nodes, the constants that are tensors, and the results of the traced
function for other numbers than those of its trace. An operator that is left out of a trace becomes
a constant there: its result for the traced arguments, whatever the arguments are.
"""

import pytest
from openreg_target import TARGET

# isort: split
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_openreg.conformance.arguments import CPU, Arguments, HostTensor
from torch_openreg.conformance.operators import (
    MAX_UNPOOLS,
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    samples_of,
)
from torch_openreg.conformance.sweep import (
    DEVICE,
    CallSequence,
    SweepTestCase,
    outcome,
    outcome_difference,
)

pytestmark = pytest.mark.sample(0.037)

__all__ = ["TARGET"]

_SAMPLES = 2
_DTYPES = (torch.float32, torch.int64)


def nodes_of(graph: Any) -> Counter[str]:
    """How many nodes of each kind a graph has, with those in blocks, and constant tensors."""
    found: Counter[str] = Counter()
    for node in graph.nodes():
        kind = node.kind()
        if kind == "prim::Constant":
            if node.output().type().kind() != "TensorType":
                continue  # numbers, flags, the device
            kind = "a tensor as a constant"
        found[kind] += 1
        for block in node.blocks():
            found += nodes_of(block)
    return found


class Traced:
    """A function as torch.jit.trace records it with some arguments."""

    def __init__(self, function: Callable[..., Any], arguments: Arguments, device: torch.device):
        copies = arguments.copied_to(device)
        leaves, spec = tree_flatten((copies.args, copies.kwargs))
        self._is_traced = [isinstance(one, torch.Tensor) for one in leaves]
        plain = [None if isinstance(one, torch.Tensor) else one for one in leaves]

        def call(*tensors: torch.Tensor) -> Any:
            given = iter(tensors)
            pairs = zip(plain, self._is_traced, strict=True)
            args, kwargs = tree_unflatten(
                [next(given) if is_traced else one for one, is_traced in pairs], spec
            )
            result = tree_flatten(function(*args, **kwargs))[0]
            return tuple(one for one in result if isinstance(one, torch.Tensor))

        inputs = tuple(one for one in leaves if isinstance(one, torch.Tensor))
        self._call = torch.jit.trace(call, inputs, check_trace=False)
        self.nodes = nodes_of(self._call.inlined_graph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = tree_flatten((args, kwargs))[0]
        pairs = zip(leaves, self._is_traced, strict=True)
        return self._call(*(one for one, is_traced in pairs if is_traced))


@dataclass(frozen=True)
class TracedCall(CallSequence):
    """A call that is traced on both devices, and called with other numbers.

    Attributes:
        info: the operator.
    """

    info: Any

    def difference(self) -> tuple[str | None, frozenset[str]]:
        arguments, others = self.steps
        try:
            expected = Traced(self.function, arguments, CPU)
        except Exception:
            return None, frozenset()  # nothing that a trace can have
        try:
            actual = Traced(self.function, arguments, DEVICE)
        except Exception as error:
            return f"{arguments}: {type(error).__name__}: {str(error)[:300]}", frozenset()
        if actual.nodes != expected.nodes:
            missing, added = expected.nodes - actual.nodes, actual.nodes - expected.nodes
            return f"{arguments}: lacks {dict(missing)}, has {dict(added)}", frozenset()
        text = outcome_difference(
            outcome(call_of(self.info, actual), others, DEVICE),
            outcome(call_of(self.info, expected), others, CPU),
        )
        return None if text is None else f"{others} after {arguments}: {text}", frozenset()


def _is_traceable(arguments: Arguments) -> bool:
    leaves = tree_flatten((arguments.args, arguments.kwargs))[0]
    return any(isinstance(one, torch.Tensor) for one in leaves) and not any(
        isinstance(one, HostTensor) for one in leaves
    )


class TestTraced(SweepTestCase):
    @parametrize("info", OPERATORS)
    def test_trace(self, info: Any) -> None:
        def calls(dtype: torch.dtype) -> Iterator[TracedCall]:
            for sample in samples_of(info, dtype, _SAMPLES):
                arguments = arguments_of(info, sample)
                if not _is_traceable(arguments):
                    continue
                is_defined = info.formatted_name not in MAX_UNPOOLS
                others = arguments.with_other_numbers() if is_defined else arguments
                yield TracedCall(info.op, (arguments, others), info)

        dtypes = [one for one in dtypes_under_test(info) if one in _DTYPES]
        self.sweep(info.formatted_name, "traced", dtypes or dtypes_under_test(info)[:1], calls)


instantiate_parametrized_tests(TestTraced)

if __name__ == "__main__":
    run_tests()
