"""Calls whose results on the device have to equal those on the CPU.

A call runs once on the CPU and at least twice on the device: an operator may take another way once
it has been called.
"""

import contextlib
import os
import random
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_openreg.conformance.arguments import CPU, Arguments, tensors_in
from torch_openreg.conformance.cases import ConformanceTestCase
from torch_openreg.conformance.comparison import Tolerance, difference
from torch_openreg.conformance.late_errors import is_late_on_cuda
from torch_openreg.conformance.records import Record, write_record
from torch_openreg.conformance.target import MissingError, missing_kernel_in, target

__all__ = [
    "DEVICE",
    "IS_FULL",
    "Call",
    "CallSequence",
    "Counts",
    "DeviceTestCase",
    "Outcome",
    "SweepTestCase",
    "crossed",
    "dtype_name",
    "is_random",
    "outcome",
    "outcome_difference",
    "relations_of",
    "sampled",
    "seed",
]

DEVICE = target().device

# Whether all samples of all dtypes run: --conformance-full, or openreg's `test/run.py --full`.
IS_FULL = os.environ.get("OPENREG_TEST_FULL") == "1"

_SEED = 1234


def seed() -> None:
    """Makes all random numbers those after a certain seed; in a forked process those of the CPU.

    torch.manual_seed is slow under pytest: it formats the stack for each device that is not there.
    """
    random.seed(_SEED)
    numpy.random.seed(_SEED)
    torch.default_generator.manual_seed(_SEED)
    target().seed(_SEED)


_T = TypeVar("_T")
_Variant = TypeVar("_Variant")


def sampled(name: str, items: Iterable[_T], count: int) -> list[_T]:
    """Some of the items, in their order, always the same ones for a name; all in a full run."""
    items = list(items)
    return items if IS_FULL else [items[index] for index in _chosen(name, len(items), count)]


def _chosen(name: str, length: int, count: int) -> list[int]:
    """Some of the first numbers, in order, always the same ones for a name."""
    if length <= count:
        return list(range(length))
    return sorted(random.Random(zlib.crc32(name.encode())).sample(range(length), count))


@dataclass(frozen=True)
class Counts:
    """How many variants of a sample run; where there are not as many, all.

    All variants of all samples would take days.

    Attributes:
        usual: of each sample that runs by default.
        thorough: of each of these in a full run.
        others: of each other sample in a full run.
    """

    usual: int
    thorough: int
    others: int


def crossed(
    name: str,
    samples: Iterable[_T],
    count: int,
    variants_of: Callable[[_T], Iterable[_Variant]],
    variants: Counts,
) -> Iterator[tuple[_T, _Variant]]:
    """Samples with variants of them: some, always the same ones for a name.

    By default, `count` of the samples run. In a full run all do, `count` of them with more variants
    than the others; which variants a sample has differs from sample to sample.
    """
    samples = list(samples)
    chosen = _chosen(name, len(samples), count)
    for number, index in enumerate(range(len(samples)) if IS_FULL else chosen):
        limit = variants.usual
        if IS_FULL:
            limit = variants.thorough if index in chosen else variants.others
        possible = list(variants_of(samples[index]))
        for place in _chosen(f"{name} {number}", len(possible), limit):
            yield samples[index], possible[place]


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call.

    Attributes:
        result: the returned value, or the exception that it raised, at the latest during the wait
            for its work.
        arguments: its arguments afterwards, if it returned.
        relations: for each tensor in the result, the argument that it is and the first
            argument whose memory it shares; None for none.
        is_late: whether the call returned and the exception came when its work was waited for.
        has_lost_work: whether a kernel that was launched after the call raised did not run.
    """

    result: Any
    arguments: Arguments
    relations: list[tuple[int | None, int | None]]
    is_late: bool = False
    has_lost_work: bool = False


def outcome(function: Callable[..., Any], arguments: Arguments, device: torch.device) -> Outcome:
    """Calls a function with copies of the arguments, always with the same random numbers.

    Without a tensor or the name of a device among them, the device is made the default one.
    """
    copies = arguments.copied_to(device)
    before = copies.tensors()
    seed()
    has_returned = False
    try:
        is_on_device = bool(before) or copies.kwargs.get("device") is not None
        with contextlib.nullcontext() if is_on_device else device:
            result = function(*copies.args, **copies.kwargs)
        has_returned = True
        if device != CPU:
            torch.accelerator.synchronize(device)
    except Exception as error:
        has_lost_work = device != CPU and not has_returned and not _runs_innocent_work(device)
        return Outcome(error.with_traceback(None), copies, [], has_returned, has_lost_work)
    return Outcome(result, copies, relations_of(result, before))


def _runs_innocent_work(device: torch.device) -> bool:
    """Whether a kernel that has nothing to do with what came before it runs."""
    try:
        number = torch.ones(3, device=device) + 1
        torch.accelerator.synchronize(device)
    except RuntimeError:
        return False
    return bool(number.tolist() == [2, 2, 2])


def relations_of(
    result: Any, arguments: Sequence[torch.Tensor]
) -> list[tuple[int | None, int | None]]:
    """Outcome.relations of a result and the tensors among the arguments of its call."""
    return [_relation(one, arguments) for one in tensors_in(result)]


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
class CallSequence:
    """Calls of one function, to compare one after the other.

    Attributes:
        function: The function to call.
        steps: with what, call by call. An operator remembers calls by their arguments' metadata,
            so a sequence that returns to metadata it has had before takes the way of a repetition.
    """

    function: Callable[..., Any]
    steps: tuple[Arguments, ...]

    def difference(self) -> tuple[str | None, frozenset[str]]:
        """Describes how one of the calls on the device differs from the same call on the CPU.

        Compared are the result, the arguments after the call, and which arguments the result is or
        is a view of. If the call raises an exception on the CPU, it has to raise one of the same
        type on the device; when the device is synchronized is soon enough for the errors that CUDA
        raises then.

        Returns:
            The description of the first difference, or None if there is none; and the operators
            for which the host waited in the last call.
        """
        expected: dict[int, Outcome] = {}
        tolerance = target().tolerance
        if not target().gives_the_cpus_random_numbers and is_random(self.function, self.steps[0]):
            tolerance = tolerance.without_contents()
        for number, arguments in enumerate(self.steps, 1):
            if id(arguments) not in expected:
                expected[id(arguments)] = outcome(self.function, arguments, CPU)
            target().forget_waits()
            actual = outcome(self.function, arguments, DEVICE)
            text = outcome_difference(actual, expected[id(arguments)], tolerance)
            if text is not None:
                return f"call {number} with {arguments}: {text}", frozenset()
        return None, frozenset(target().waits())

    def operators(self) -> dict[str, str]:
        """Calls once more on the device; returns the operators of ATen that run, with tiers."""
        copies = self.steps[-1].copied_to(DEVICE)
        with _OperatorNames() as mode, contextlib.suppress(Exception):
            self.function(*copies.args, **copies.kwargs)
        with contextlib.suppress(Exception):
            torch.accelerator.synchronize(DEVICE)
        return {name: target().tier_of(name) for name in sorted(mode.names)}


class Call(CallSequence):
    """A call to compare, and its repetition."""

    def __init__(
        self, function: Callable[..., Any], arguments: Arguments, before: Arguments | None = None
    ) -> None:
        """Takes a function, its arguments, and arguments of a call that comes before, if any."""
        earlier = () if before is None else (before,)
        super().__init__(function, (*earlier, arguments, arguments))


class _OperatorNames(TorchDispatchMode):
    """Notes the operators of ATen that reach the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Sizes of nested tensors come from operators that the dispatcher does not have.
        if func.namespace == "aten" and torch._C._dispatch_has_kernel(func._name):
            self.names.add(func._name)
        return func(*args, **(kwargs or {}))


class _RandomOperators(TorchDispatchMode):
    """Notes whether an operator draws random numbers."""

    has_any: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A generator that the call creates is not shared state.
        is_drawing = torch.Tag.nondeterministic_seeded in func.tags
        self.has_any |= is_drawing and kwargs.get("generator") is None
        return func(*args, **kwargs)


def is_random(function: Callable[..., Any], arguments: Arguments) -> bool:
    """Whether a call draws from the default generator, which all threads share."""
    with _RandomOperators() as mode:
        outcome(function, arguments, CPU)
    return bool(mode.has_any)


def outcome_difference(
    actual: Outcome, expected: Outcome, tolerance: Tolerance | None = None
) -> str | None:
    """Describes how the outcome of a call on the device differs from the CPU's.

    Args:
        actual: On the device.
        expected: On the CPU.
        tolerance: None for the target's.

    Returns:
        The description, or None if there is no difference.
    """
    tolerance = tolerance or target().tolerance
    if isinstance(expected.result, Exception) or isinstance(actual.result, Exception):
        if _is_dtype_that_the_cpu_lacks(expected.result) and not isinstance(
            actual.result, Exception
        ):
            return None  # test_dtypes.py lists them, and compares the results
        if not _is_same_error(actual.result, expected.result):
            return f"{_shown_error(actual.result)} instead of {_shown_error(expected.result)}"
        if actual.is_late and not is_late_on_cuda(str(expected.result)):
            return f"{_shown_error(expected.result)} not in the call, but when it is waited for"
        if actual.has_lost_work:
            return f"a kernel behind the call that raised {_shown_error(expected.result)} is lost"
        return None
    text = difference(actual.result, expected.result, DEVICE, tolerance)
    if text is not None:
        return f"result{'' if text.startswith('[') else ': '}{text}"
    pairs = zip(actual.arguments.tensors(), expected.arguments.tensors(), strict=True)
    for index, (one, other) in enumerate(pairs):
        text = difference(one, other, CPU if one.is_cpu else DEVICE, tolerance)
        if text is not None:
            return f"argument {index} afterwards: {text}"
    if actual.relations != expected.relations:
        return (
            "results are and share memory with arguments "
            f"{actual.relations} instead of {expected.relations}"
        )
    return None


# cudaErrorAssert.
_ASSERT = 710


def _is_same_error(actual: Any, expected: Any) -> bool:
    """Whether the types agree. A launched kernel's RuntimeError comes out as AcceleratorError.

    A device-side assert, whatever its type is on the CPU, is an error of data.
    """
    if type(actual) is torch.AcceleratorError:
        is_of_data = is_late_on_cuda(str(expected))
        is_assert = getattr(actual, "error_code", None) == _ASSERT
        return is_of_data if is_assert else type(expected) is RuntimeError
    return type(actual) is type(expected)


def _is_dtype_that_the_cpu_lacks(error: Any) -> bool:
    return isinstance(error, NotImplementedError) and bool(
        re.search(r"not implemented for '(Half|BFloat16|ComplexHalf|Bool)'", str(error))
    )


def _shown_error(value: Any) -> str:
    if not isinstance(value, Exception):
        return "no exception"
    text = str(value).strip().split("\n")[0]
    return f"{type(value).__name__}({text[:300]!r})"


class DeviceTestCase(ConformanceTestCase):
    """A test of code that takes a device."""

    def assert_same_on_both(self, function: Callable[[torch.device], object]) -> None:
        """The function, called with a device, has to return the same on both devices."""
        results = []
        for device in (CPU, DEVICE):
            seed()
            results.append(function(device))
        expected, actual = results
        self.assertIsNone(difference(actual, expected, DEVICE, target().tolerance))


class SweepTestCase(ConformanceTestCase):
    """A test of one operator, module or optimizer over its dtypes and samples."""

    def sweep(
        self,
        name: str,
        variant: str,
        dtypes: Iterable[torch.dtype],
        calls: Callable[[torch.dtype], Iterator[CallSequence]],
    ) -> None:
        """Compares calls with each dtype; fails if one differs that is not in the list of gaps.

        A dtype is checked up to its first difference. A gap that is listed and does not show is a
        failure, too.

        Args:
            name: of the operator.
            variant: The tested use, such as "forward".
            dtypes: those to check.
            calls: yields the calls with a dtype.
        """
        record = Record(name, variant)
        failures = []
        for dtype in sorted(dtypes, key=str):
            gap = target().gap(name, variant, dtype_name(dtype))
            text = self._first_difference(calls(dtype), record)
            if text is None and gap is None:
                record.passed += 1
            elif text is not None and gap is not None:
                record.listed += 1
            else:
                record.failed += 1
                text = text or f"passes, but is a known gap: {gap}"
                failures.append(f"{name} {variant} {dtype_name(dtype)} {text}")
        write_record(record)
        missing = dict.fromkeys(missing_kernel_in(text) for text in failures)
        if failures and None not in missing:
            raise MissingError("; ".join(filter(None, missing)))
        if failures:
            self.fail("\n" + "\n".join(failures))

    def _first_difference(self, calls: Iterator[CallSequence], record: Record) -> str | None:
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
                    record.asynchronous += not waited
                    record.waited = sorted({*record.waited, *waited})
            except Exception as error:
                return f"after sample {index}: {_shown_error(error)}"
        return None
