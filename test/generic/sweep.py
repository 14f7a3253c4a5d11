"""Calls that have to give on openreg what they give on the CPU.

A call runs once on the CPU and twice on openreg: an operator may take another way once it has been
called.
"""

import contextlib
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from common import OpenRegTestCase
from comparison import difference
from known_gaps import GAPS, Gap
from report import Record, write_record
from samples import CPU, Arguments, tensors_in
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "_ext"))

from tiers import tier_of

__all__ = [
    "DEVICE",
    "IS_FULL",
    "Call",
    "DeviceTestCase",
    "SweepTestCase",
    "dtype_name",
    "outcome",
    "seed",
]

DEVICE = torch.device("openreg", 0)

# Whether all samples of all dtypes run: `python test/run.py --full`.
IS_FULL = os.environ.get("OPENREG_TEST_FULL") == "1"

_SEED = 1234


def seed() -> None:
    """Makes all random numbers those after a certain seed.

    torch.manual_seed is slow under pytest: it formats the stack for each device that is not there.
    """
    random.seed(_SEED)
    numpy.random.seed(_SEED)
    torch.default_generator.manual_seed(_SEED)
    torch.openreg.default_generators[DEVICE.index].manual_seed(_SEED)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Outcome:
    """What a call left behind.

    Attributes:
        result: what it returned, or the exception that it raised, at the latest when its work was
            waited for.
        arguments: its arguments afterwards, if it returned.
        relations: for each tensor in the result, the argument that it is and the first
            argument whose memory it shares; None for none.
    """

    result: Any
    arguments: Arguments
    relations: list[tuple[int | None, int | None]]


def outcome(function: Callable[..., Any], arguments: Arguments, device: torch.device) -> Outcome:
    """Calls a function with copies of the arguments, always with the same random numbers.

    Without a tensor or the name of a device among them, the device is made the default one.
    """
    copies = arguments.copied_to(device)
    before = copies.tensors()
    seed()
    try:
        is_on_device = bool(before) or copies.kwargs.get("device") is not None
        with contextlib.nullcontext() if is_on_device else device:
            result = function(*copies.args, **copies.kwargs)
        if device != CPU:
            torch.accelerator.synchronize(device)
    except Exception as error:
        return Outcome(error.with_traceback(None), copies, [])
    return Outcome(result, copies, [_relation(one, before) for one in tensors_in(result)])


def _relation(
    tensor: torch.Tensor, others: Iterable[torch.Tensor]
) -> tuple[int | None, int | None]:
    same = shared = None
    for index, other in enumerate(others):
        if tensor is other and same is None:
            same = index
        if shared is None and _has_same_memory(tensor, other):
            shared = index
    return same, shared


def _has_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.layout == other.layout == torch.strided
        and one.untyped_storage()._cdata == other.untyped_storage()._cdata
    )


@dataclass(frozen=True)
class Call:
    """A call to compare.

    Attributes:
        function: what is called.
        arguments: with what.
        before: arguments of a call on openreg that comes before; None for no such call.
    """

    function: Callable[..., Any]
    arguments: Arguments
    before: Arguments | None = None

    def difference(self) -> tuple[str | None, frozenset[str]]:
        """Describes how the call on openreg differs from the same call on the CPU.

        Compared are the result, the arguments after the call, and which arguments the result is or
        is a view of. If the call raises an exception on the CPU, it has to raise one of the same
        type on openreg, there or when the device is synchronized.

        Returns:
            The description of the first difference, or None if there is none; and the operators
            for which the host waited in the second call.
        """
        if self.before is not None:
            outcome(self.function, self.before, DEVICE)
        expected = outcome(self.function, self.arguments, CPU)
        for number in (1, 2):
            torch.openreg.reset_fallback_stats()
            actual = outcome(self.function, self.arguments, DEVICE)
            text = _outcome_difference(actual, expected)
            if text is not None:
                return f"call {number} with {self.arguments}: {text}", frozenset()
        return None, frozenset(torch.openreg.fallback_stats(synchronous_only=True))

    def operators(self) -> dict[str, str]:
        """Calls once more on openreg; returns the operators of ATen that run, with their tiers."""
        copies = self.arguments.copied_to(DEVICE)
        with _OperatorNames() as mode, contextlib.suppress(Exception):
            self.function(*copies.args, **copies.kwargs)
        with contextlib.suppress(Exception):
            torch.accelerator.synchronize(DEVICE)
        return {name: tier_of(name) for name in sorted(mode.names)}


class _OperatorNames(TorchDispatchMode):
    """Notes the operators of ATen that reach the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten":
            self.names.add(func._name)
        return func(*args, **(kwargs or {}))


def _outcome_difference(actual: Outcome, expected: Outcome) -> str | None:
    if isinstance(expected.result, Exception) or isinstance(actual.result, Exception):
        if _is_same_error(actual.result, expected.result):
            return None
        return f"{_shown_error(actual.result)} instead of {_shown_error(expected.result)}"
    text = difference(actual.result, expected.result, DEVICE)
    if text is not None:
        return f"result{'' if text.startswith('[') else ': '}{text}"
    pairs = zip(actual.arguments.tensors(), expected.arguments.tensors(), strict=True)
    for index, (one, other) in enumerate(pairs):
        text = difference(one, other, CPU if one.is_cpu else DEVICE)
        if text is not None:
            return f"argument {index} afterwards: {text}"
    if actual.relations != expected.relations:
        return (
            "results are and share memory with arguments "
            f"{actual.relations} instead of {expected.relations}"
        )
    return None


def _is_same_error(actual: Any, expected: Any) -> bool:
    """Whether the types agree. A launched kernel's RuntimeError comes out as AcceleratorError."""
    if type(expected) is RuntimeError and type(actual) is torch.AcceleratorError:
        return True
    return type(actual) is type(expected)


def _shown_error(value: Any) -> str:
    if not isinstance(value, Exception):
        return "no exception"
    text = str(value).strip().split("\n")[0]
    return f"{type(value).__name__}({text[:300]!r})"


class DeviceTestCase(OpenRegTestCase):
    """A test of code that takes a device."""

    def assert_same_on_both(self, function: Callable[[torch.device], object]) -> None:
        """The function, called with a device, has to return the same on openreg and on the CPU."""
        results = []
        for device in (CPU, DEVICE):
            seed()
            results.append(function(device))
        expected, actual = results
        self.assertIsNone(difference(actual, expected, DEVICE))


class SweepTestCase(OpenRegTestCase):
    """A test of one operator, module or optimizer over its dtypes and samples."""

    def sweep(
        self,
        name: str,
        variant: str,
        dtypes: Iterable[torch.dtype],
        calls: Callable[[torch.dtype], Iterator[Call]],
    ) -> None:
        """Compares calls with each dtype; fails if one differs that is not in the list of gaps.

        A dtype is checked up to its first difference. A gap that is listed and does not show is a
        failure, too.

        Args:
            name: of the operator.
            variant: what is done with it, such as "forward".
            dtypes: those to check.
            calls: yields the calls with a dtype.
        """
        record = Record(name, variant)
        failures = []
        for dtype in sorted(dtypes, key=str):
            gap = _gap_of(name, variant, dtype)
            text = self._first_difference(calls(dtype), record)
            if text is None and gap is None:
                record.passed += 1
            elif text is not None and gap is not None:
                record.listed += 1
            else:
                record.failed += 1
                text = text or f"passes, but is a known gap: {gap.reason}"
                failures.append(f"{name} {variant} {dtype_name(dtype)} {text}")
        write_record(record)
        if failures:
            self.fail("\n" + "\n".join(failures))

    def _first_difference(self, calls: Iterator[Call], record: Record) -> str | None:
        index = -1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for index, call in enumerate(calls):
                    text, waited = call.difference()
                    if text is not None:
                        return f"sample {index}: {text}"
                    if not record.samples:
                        record.operators = call.operators()
                    record.samples += 1
                    record.waited = sorted({*record.waited, *waited})
            except Exception as error:
                return f"after sample {index}: {_shown_error(error)}"
        return None


def _gap_of(name: str, variant: str, dtype: torch.dtype) -> Gap | None:
    for gap in GAPS:
        if gap.matches(name, variant, dtype_name(dtype), IS_FULL):
            return gap
    return None
