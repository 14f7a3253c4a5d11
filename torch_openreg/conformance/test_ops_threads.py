"""Two threads with separate streams that call one operator concurrently get the CPU's results."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_openreg.conformance.arguments import CPU, Arguments
from torch_openreg.conformance.cases import (
    call_in_threads,
    instantiate_parametrized_tests,
    parametrize,
)
from torch_openreg.conformance.deadlines import PATIENCE_S
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    gradients_of,
    samples_of,
)
from torch_openreg.conformance.sweep import (
    DEVICE,
    CallSequence,
    Outcome,
    SweepTestCase,
    is_random,
    outcome,
    outcome_difference,
    relations_of,
    sampled,
)
from torch_openreg.conformance.target import target

_FIRST = 8  # samples to choose from
_SAMPLES = 2
_THREADS = 2
_CALLS = 3  # of each thread

# Those that need a mode for a defined result are left out: the mode belongs to all threads.
_WITH_FLOATS = [
    one
    for one in OPERATORS
    if torch.float32 in dtypes_under_test(one.arg_values)
    and call_of(one.arg_values, one.arg_values.op) is one.arg_values.op
]
_DIFFERENTIABLE = [
    one for one in _WITH_FLOATS if torch.float32 in one.arg_values.supported_backward_dtypes("cpu")
]


@dataclass(frozen=True)
class ThreadedCall(CallSequence):
    """A call that several threads make at once, a few times."""

    def difference(self) -> tuple[str | None, frozenset[str]]:
        (arguments,) = self.steps
        expected = outcome(self.function, arguments, CPU)
        barrier = threading.Barrier(_THREADS, timeout=PATIENCE_S)
        outcomes: list[Outcome] = []
        target().forget_waits()

        def run() -> None:
            stream = torch.Stream(DEVICE)
            with stream:
                for _ in range(_CALLS):
                    barrier.wait()
                    outcomes.append(_unseeded_outcome(self.function, arguments, stream))

        with contextlib.suppress(threading.BrokenBarrierError):
            call_in_threads(*[run] * _THREADS)
        if len(outcomes) != _THREADS * _CALLS:
            return f"a thread has died, with {arguments}", frozenset()
        for actual in outcomes:
            text = outcome_difference(actual, expected)
            if text is not None:
                return f"in a thread, with {arguments}: {text}", frozenset()
        waited = target().waits()
        # A first call of a kind may wait, in each thread if they are at it together.
        return None, frozenset(name for name, count in waited.items() if count > _THREADS)


def _unseeded_outcome(
    function: Callable[..., Any], arguments: Arguments, stream: torch.Stream
) -> Outcome:
    """A call on the thread's current stream. The generator belongs to all threads."""
    copies = arguments.copied_to(DEVICE)
    before = copies.tensors()
    try:
        if before:
            result = function(*copies.args, **copies.kwargs)
        else:
            with torch.device(DEVICE):
                result = function(*copies.args, **copies.kwargs)
        stream.synchronize()
    except Exception as error:
        return Outcome(error.with_traceback(None), copies, [])
    return Outcome(result, copies, relations_of(result, before))


class TestThreads(SweepTestCase):
    def check_threads(self, info: Any, variant: str, is_backward: bool) -> None:
        def calls(dtype: torch.dtype) -> Iterator[ThreadedCall]:
            samples = list(samples_of(info, dtype, _FIRST, is_backward))
            for sample in sampled(f"{info.formatted_name} {variant}", samples, _SAMPLES):
                arguments = arguments_of(info, sample)
                # Not of the gradients: their directions come from a generator of each call's own.
                if is_random(info.op, arguments):
                    continue
                function = info.op
                if is_backward:
                    function = gradients_of(function, choose=sample.output_process_fn_grad)
                yield ThreadedCall(function, (arguments,))

        self.sweep(info.formatted_name, variant, [torch.float32], calls)

    @parametrize("info", _WITH_FLOATS)
    def test_forward(self, info: Any) -> None:
        self.check_threads(info, "threads", is_backward=False)

    @parametrize("info", _DIFFERENTIABLE)
    def test_backward(self, info: Any) -> None:
        self.check_threads(info, "threads backward", is_backward=True)


instantiate_parametrized_tests(TestThreads)
