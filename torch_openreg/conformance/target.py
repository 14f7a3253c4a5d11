"""The device under test, and the kit's queries of it.

The kit contains no code for specific backends. The device itself reports missing features: through
``torch.accelerator``, through the module ``torch.<type>``, and through the error texts of the
defaults of torch's guard and hooks. All other errors are failures and not reasons to skip.
"""

import contextlib
import functools
import re
import threading
import unittest
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_openreg.conformance.comparison import CLOSE, Tolerance
from torch_openreg.conformance.report import LOST

__all__ = [
    "FEATURES",
    "MissingError",
    "Target",
    "graph_type",
    "missing_in",
    "missing_kernel_in",
    "needs",
    "set_target",
    "target",
]

# How the defaults of c10's guard, of ATen's hooks and of the allocators say that there is nothing.
_REFUSAL = re.compile(
    r"[Bb]ackend doesn[`']t support|You should register `?PrivateUse1HooksInterface|"
    r"is not a DeviceAllocator|Please register a generator|does not support graph|"
    r"Graph is not supported on device type",
    re.IGNORECASE,
)


# torch's error texts for a device without a kernel for an operator.
_NO_KERNEL = re.compile(
    r"Could not run '(?P<name>[\w:.]+)' with arguments from the '\w+' backend|"
    r"(?P<overrideable>\w+_overrideable) not implemented"
)


class MissingError(AssertionError):
    """A test has failed only because of operators that the device reports as missing."""


class Target:
    """A device under test.

    Subclasses may use knowledge of their device for which torch has no interface.

    Attributes:
        device: The device, with an index.
        tolerance: How far results may be from the CPU's.
    """

    def __init__(self, device: torch.device | str, tolerance: Tolerance = CLOSE) -> None:
        """Takes the device; without an index, it is the first."""
        device = torch.device(device)
        self.device = torch.device(device.type, device.index or 0)
        self.tolerance = tolerance
        self._lacks: dict[str, str | None] = {}
        self._lost: str | None = None
        self._capture: tuple[Any, torch.Stream] | None = None  # under way: its graph and stream

    @property
    def module(self) -> ModuleType | None:
        """The module ``torch.<type>``; None if the backend has attached none."""
        found = getattr(torch, self.device.type, None)
        return found if isinstance(found, ModuleType) else None

    def device_count(self) -> int:
        """The number of devices of this type."""
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or accelerator.type != self.device.type:
            return 1
        return torch.accelerator.device_count()

    def other(self) -> torch.device:
        """Another device of the type, or the same one if it is the only one."""
        return torch.device(self.device.type, (self.device.index + 1) % self.device_count())

    # --- Features

    def lacks(self, feature: str) -> str | None:
        """Why the device has no such feature, in its own words; None if it has the feature.

        Args:
            feature: A key of FEATURES.
        """
        if feature not in self._lacks:
            self._lacks[feature] = FEATURES[feature](self)
        return self._lacks[feature]

    # --- Random numbers

    def seed(self, number: int) -> None:
        """Seeds the device's default generator; in a forked process, which has none, nothing."""
        module = self.module
        if module is None or getattr(module, "_is_in_bad_fork", bool)():
            return
        generators = getattr(module, "default_generators", ())
        if len(generators) > self.device.index:
            generators[self.device.index].manual_seed(number)
        elif hasattr(module, "manual_seed"):
            module.manual_seed(number)

    @functools.cached_property
    def gives_the_cpus_random_numbers(self) -> bool:
        """Whether equal seeds give equal numbers; if not, only their metadata are compared."""
        numbers = []
        for device in (torch.device("cpu"), self.device):
            torch.default_generator.manual_seed(7)
            self.seed(7)
            try:
                drawn = [torch.rand(9, device=device), torch.randn(20, device=device)]
            except RuntimeError:
                return False
            numbers.append(torch.cat([one.cpu() for one in drawn]))
        return torch.equal(*numbers)

    # --- Copies

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the CPU, without waiting for the stream if the device can."""
        if self.lacks("pinned memory"):
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    # --- Optional information about a device's calls

    def forget_waits(self) -> None:
        """Begins to note the operators for which the host waits, if the device can."""

    def waits(self) -> dict[str, int]:
        """The operators for which the host has waited since then, with counts."""
        return {}

    def tier_of(self, operator: str) -> str:
        """How an operator, such as "aten::add.Tensor", runs: a word for the report."""
        return "device"

    def gap(self, name: str, variant: str, dtype: str) -> str | None:
        """Why a difference is known and accepted; None if it is not."""
        return None

    # --- Streams

    def hold(self, stream: torch.Stream) -> AbstractContextManager[object]:
        """Keeps a stream busy while the block runs, or for a short time if the host waits for it.

        Without a way to hold it, long work is submitted before the block.
        """
        return self._busy(stream)

    @contextlib.contextmanager
    def _busy(self, stream: torch.Stream) -> Iterator[None]:
        with stream:
            work = torch.ones(512, 512, device=stream.device)
            for _ in range(20):
                work = work @ work / 512
        yield
        # The work's memory belongs to this stream, which runs all later work.

    # --- Before and after tests

    def check_before_class(self) -> None:
        """Raises AssertionError if the process does not meet a test class's requirements."""

    @property
    def lost(self) -> str | None:
        """Why tests cannot run any more, with the test from which on; None if they can."""
        return self._lost

    def check_after_test(self, case: unittest.TestCase) -> None:
        """Fails the test if it has changed state that it has to restore."""
        if self.lacks("accelerator") or self._lost is not None:
            return
        was_capturing = self._end_capture()
        try:
            torch.accelerator.synchronize(self.device)
        except Exception:
            # The error may be that of the test's work, which this call has cleared.
            if (reason := self._why_lost()) is not None:
                self._lost = f"{LOST}{_test_name(case)}: {reason}"
            raise
        case.assertFalse(was_capturing, "the test left a stream capturing")
        current = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(0)  # one mistake is not blamed on the tests after it
        case.assertEqual(current, 0, "the test left another device current")

    @contextlib.contextmanager
    def capture(self, graph: Any) -> Iterator[None]:
        """Captures the work of a block in a graph, and ends the capture in any case.

        Raises:
            MissingError: The block has raised, in an operator without a kernel for the device.
        """
        self._capture = graph, torch.accelerator.current_stream(self.device)
        graph.capture_begin()
        operators = _FailedOperator()
        try:
            with operators:
                yield
        except Exception as error:
            self._end_capture()
            lacking = operators.without_kernel(self.device.type)
            if lacking is None or missing_in(error) is not None:
                raise
            text = str(error).split("\n")[0]
            raise MissingError(f"the device lacks a kernel of {lacking}: {text}") from error
        except BaseException:
            self._end_capture()
            raise
        graph.capture_end()
        self._capture = None

    def _end_capture(self) -> bool:
        """Ends a capture that is under way; returns whether there was one."""
        if self._capture is None:
            return False
        graph, stream = self._capture
        self._capture = None
        # The error of the test matters, and this one follows from it.
        with stream, contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing is captured
            graph.capture_end()
        return True

    def _why_lost(self) -> str | None:
        """Why the device does not do the least work; None if it does."""
        try:
            number = torch.ones(3, device=self.device) + 1
            torch.accelerator.synchronize(self.device)
            return None if number.tolist() == [2, 2, 2] else f"1 + 1 is {number.tolist()}"
        except Exception as error:
            return str(error).split("\n")[0]


class _FailedOperator(TorchDispatchMode):
    """Notes the operator of ATen whose call has raised."""

    _operator: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except (RuntimeError, NotImplementedError):
            self._operator = func
            raise

    def without_kernel(self, device_type: str) -> str | None:
        """Its name, if only a fallback serves it on the device; None if it has a kernel."""
        if self._operator is None:
            return None
        name = self._operator._name
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        composite = "CompositeImplicitAutograd", "CompositeExplicitAutograd"
        keys = (_dispatch_key(device_type), *composite)
        return None if any(has_kernel(name, key) for key in keys) else name


def _dispatch_key(device_type: str) -> str:
    if device_type == torch._C._get_privateuse1_backend_name():
        return "PrivateUse1"
    return device_type.upper()


def _test_name(case: unittest.TestCase) -> str:
    """The name of a test as in the report."""
    return "::".join(case.id().split(".")[-3:])


def missing_in(error: BaseException) -> str | None:
    """The missing feature, if an exception has one of torch's texts for it; None if it does not.

    The exception is uncaught: an error that a test expects is not passed here.
    """
    if isinstance(error, MissingError):
        return str(error).strip().split("\n")[0]  # torch's TestCase adds lines
    if not isinstance(error, (RuntimeError, NotImplementedError)):
        return None
    text = str(error).split("\n")[0]
    if _REFUSAL.search(text):
        return f"the device reports: {text}"
    return missing_kernel_in(text)


def missing_kernel_in(text: str) -> str | None:
    """The same, of the text of an exception."""
    found = _NO_KERNEL.search(text)
    if found is None:
        return None
    name = found["name"] or f"aten::{found['overrideable']}"
    return f"the device lacks a kernel of {name}"


def _refusal_of(call: Callable[[], object]) -> str | None:
    """The error texts of torch's defaults for functions that a backend has not implemented."""
    try:
        call()
    except (RuntimeError, NotImplementedError) as error:
        text = str(error).split("\n")[0]
        if _REFUSAL.search(text):
            return text
    return None


def _no_accelerator(one: Target) -> str | None:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != one.device.type:
        return f"torch.accelerator.current_accelerator() is {accelerator}"
    return None


def _no_module(one: Target) -> str | None:
    return None if one.module is not None else f"there is no module torch.{one.device.type}"


def _no_streams(one: Target) -> str | None:
    return _no_accelerator(one) or _refusal_of(lambda: torch.Stream(one.device))


def _no_events(one: Target) -> str | None:
    return _no_streams(one) or _refusal_of(lambda: _recorded(one).synchronize())


def _no_timing(one: Target) -> str | None:
    def measure() -> None:
        first, second = (_recorded(one, enable_timing=True) for _ in range(2))
        second.synchronize()
        first.elapsed_time(second)

    return _no_events(one) or _refusal_of(measure)


def _recorded(one: Target, **options: Any) -> torch.Event:
    event = torch.Event(one.device, **options)
    event.record(torch.accelerator.current_stream(one.device))
    return event


def _no_statistics(one: Target) -> str | None:
    return _no_accelerator(one) or _refusal_of(lambda: torch.accelerator.memory_stats(one.device))


def _no_pinned_memory(one: Target) -> str | None:
    return _no_accelerator(one) or _refusal_of(lambda: torch.empty(1).pin_memory())


def _no_generator(one: Target) -> str | None:
    return _refusal_of(lambda: torch.Generator(one.device))


def _no_random_state(one: Target) -> str | None:
    missing = [name for name in ("get_rng_state", "set_rng_state") if not hasattr(one.module, name)]
    text = f"torch.{one.device.type} has no {missing[0]}" if missing else None
    return _no_module(one) or _no_generator(one) or text


def _no_autocast(one: Target) -> str | None:
    is_available = torch.amp.is_autocast_available(one.device.type)
    module = one.module
    if is_available and (
        one.device.type != torch._C._get_privateuse1_backend_name()
        or hasattr(module, "get_amp_supported_dtype")
    ):
        return None
    if not is_available:
        return "torch.amp.is_autocast_available() is False"
    return f"torch.{one.device.type} has no get_amp_supported_dtype"


def graph_type(one: Target) -> Any:
    """The type of graphs of a device: the one of its module, or torch.accelerator's."""
    for name in ("Graph", "CUDAGraph", "XPUGraph"):
        found = getattr(one.module, name, None)
        if isinstance(found, type):
            return found
    return torch.accelerator.Graph


def _no_graphs(one: Target) -> str | None:
    def capture() -> None:
        graph = graph_type(one)()
        with torch.Stream(one.device), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing is captured
            graph.capture_begin()
            graph.capture_end()

    return _no_streams(one) or _refusal_of(capture)


def _no_second_device(one: Target) -> str | None:
    return None if one.device_count() > 1 else "there is one device"


def _no_data_parallel(one: Target) -> str | None:
    """Only builds of torch with CUDA have the functions, for CUDA. A backend may add its own."""
    model = torch.nn.utils.skip_init(torch.nn.Linear, 1, 1).to(one.device)
    devices = list(range(min(one.device_count(), 2)))
    try:
        torch.nn.DataParallel(model, device_ids=devices)(torch.zeros(2, 1, device=one.device))
    except AttributeError as error:
        return str(error)
    except RuntimeError as error:
        # Without a GPU, torch asks for NVIDIA's driver in one of the functions.
        if one.device.type == "cuda" or not re.search("CUDA|NVIDIA", str(error)):
            raise
        return str(error).splitlines()[0]
    return None


# Checks for a feature: returns why it is missing, or None if it exists.
FEATURES: dict[str, Callable[[Target], str | None]] = {
    "accelerator": _no_accelerator,
    "module": _no_module,
    "streams": _no_streams,
    "events": _no_events,
    "timing": _no_timing,
    "statistics": _no_statistics,
    "pinned memory": _no_pinned_memory,
    "generator": _no_generator,
    "random state": _no_random_state,
    "autocast": _no_autocast,
    "graphs": _no_graphs,
    "two devices": _no_second_device,
    "DataParallel": _no_data_parallel,
}

_lock = threading.Lock()
_target: Target | None = None


def set_target(new: Target) -> None:
    """Chooses the device, once in a process and before a module of tests is imported.

    Raises:
        RuntimeError: Another device has been chosen.
    """
    global _target
    with _lock:
        if _target is not None and _target.device != new.device:
            raise RuntimeError(
                f"set_target: expected {_target.device}, which was chosen before, got {new.device}"
            )
        _target = new


def target() -> Target:
    """The device under test.

    Raises:
        RuntimeError: None has been chosen.
    """
    if _target is None:
        raise RuntimeError(
            "target: expected a device under test, got none; run pytest with "
            "--pyargs torch_openreg.conformance --device=NAME"
        )
    return _target


def needs(*features: str) -> Callable[[Any], Any]:
    """Skips a test, or a class of tests, if the device lacks one of the features.

    The report lists the reasons under "what is missing".

    Args:
        features: Keys of FEATURES.
    """

    def reason() -> str | None:
        for feature in features:
            text = target().lacks(feature)
            if text is not None:
                return f"the device lacks {feature}: {text}"
        return None

    def decorate(test: Any) -> Any:
        if isinstance(test, type):
            return _class_that_needs(test, reason)

        @functools.wraps(test)
        def run(self: unittest.TestCase, *args: Any, **kwargs: Any) -> None:
            text = reason()
            if text is not None:
                self.skipTest(text)
            test(self, *args, **kwargs)

        return run

    return decorate


def _class_that_needs(test: Any, reason: Callable[[], str | None]) -> Any:
    original = test.setUp

    def set_up(self: unittest.TestCase) -> None:
        text = reason()
        if text is not None:
            self.skipTest(text)
        original(self)

    test.setUp = set_up
    return test
