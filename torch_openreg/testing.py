"""Helpers for tests of asynchronous code.

A test that sleeps until something has "surely" happened is slow and sometimes wrong. Hold a stream
with a :class:`StreamGate` instead: while the gate is closed, the state of the stream is known. A
test that passes by luck fails under another :func:`schedule`.
"""

import functools
import gc
import linecache
import os
import sys
import threading
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import torch

from torch_openreg import _C, extras
from torch_openreg._device_name import DEVICE_NAME
from torch_openreg.openreg.events import _check_stream
from torch_openreg.openreg.memory import empty_cache, mem_get_info
from torch_openreg.openreg.streams import current_stream

__all__ = ["StreamGate", "current_schedule", "largeTensorTest", "schedule"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Case = TypeVar("_Case", bound=unittest.TestCase)


class StreamGate:
    """Holds a stream from the start of a ``with`` block until it is opened.

    Work submitted to the stream before the block runs; work submitted inside waits. :meth:`open`
    opens the gate, as does the end of the block, even with an exception. While it is closed, a call
    that waits for the stream does not return; if the thread that closed it is blocked for some
    seconds, a message on stderr has its position. The gate can be used again after the block.

    Args:
        stream: The stream; None for the one that is current when the block begins.

    Example:
        >>> x = torch.zeros(1, device="openreg")
        >>> with StreamGate() as gate:
        ...     x += 1  # returns, but does not run yet
        ...     assert not torch.openreg.current_stream().query()
        ...     gate.open()
        ...     assert x.item() == 1
    """

    def __init__(self, stream: torch.Stream | None = None) -> None:
        """Stores the stream; entering the block closes the gate."""
        if stream is not None:
            _check_stream("StreamGate", stream)
        self._stream = stream
        self._gate: _C._Gate | None = None
        self._watch: _Watch | None = None

    def __enter__(self) -> Self:
        """Closes the gate.

        Raises:
            RuntimeError: The gate is in use.
        """
        if self._gate is not None:
            raise RuntimeError("StreamGate: this gate is already in use; create another one")
        stream = current_stream() if self._stream is None else self._stream
        gate = _C._Gate()
        gate.block(stream.stream_id, stream.device_index, stream.device_type)
        self._gate = gate
        self._watch = _Watch(stream, sys._getframe(1))
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Opens the gate."""
        self.open()
        self._gate = None

    def _entered(self, operation: str) -> _C._Gate:
        if self._gate is None:
            raise RuntimeError(f"StreamGate.{operation}: expected a call inside the 'with' block")
        return self._gate

    def open(self) -> None:
        """Lets the stream go on. Does nothing if the gate is open."""
        self._entered("open").open()
        if self._watch is not None:
            self._watch.end()

    def is_open(self) -> bool:
        """Returns whether the gate is open."""
        return self._entered("is_open").is_open()

    def wait_until_reached(self, timeout: float = 60.0) -> None:
        """Waits until the stream has reached the gate, so that all earlier work is done.

        Args:
            timeout: The longest time to wait, in seconds.

        Raises:
            TimeoutError: The stream has not reached the gate in time.
        """
        if not self._entered("wait_until_reached").wait_until_reached(timeout):
            raise TimeoutError(
                f"StreamGate.wait_until_reached: expected the stream to reach the gate within "
                f"{timeout} s, but it is still at earlier work"
            )


# How long a thread that has closed a gate is at one position before a message is printed.
_PATIENCE_S = 10.0


class _Watch:
    """Watches a thread that has closed a gate: it may wait for work after the gate."""

    def __init__(self, stream: torch.Stream, frame: FrameType) -> None:
        """Starts in a separate thread.

        Args:
            stream: The stream that the gate holds.
            frame: Where the gate was closed, in the calling thread.
        """
        self._stream = f"stream {stream.stream_id} of {stream.device}"
        self._closed_at = _place(frame)
        self._thread = threading.current_thread()
        self._has_ended = threading.Event()
        threading.Thread(target=self._run, name="StreamGate", daemon=True).start()

    def end(self) -> None:
        self._has_ended.set()

    def _run(self) -> None:
        before: tuple[int, int] | None = None
        while not self._has_ended.wait(_PATIENCE_S / 2):
            frame = sys._current_frames().get(self._thread.ident or 0)
            if frame is None:
                return
            now = id(frame), frame.f_lasti
            if now == before:
                _tell(self._message(frame))
                return
            before = now

    def _message(self, frame: FrameType) -> str:
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDERS):
            frame = frame.f_back
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return (
            f"torch_openreg: the StreamGate closed at {self._closed_at} holds {self._stream}, and "
            f"for some seconds the thread {self._thread.name}, which closed it, has been at "
            f"{_place(frame)}: {line}\n  If that waits for the stream, it waits for gate.open(), "
            "which only another thread can call then. Open the gate before.\n"
        )


_OWN_FOLDERS = tuple(
    os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in (torch, _C)
)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _tell(message: str) -> None:
    """Writes to stderr, under pytest to the one that pytest does not keep until the test ends."""
    file = getattr(sys.modules.get("pytest_openreg"), "_stderr", 2)
    os.write(file, message.encode())


def current_schedule() -> str:
    """Returns the schedule of the streams, in the words of ``OPENREG_SCHEDULE``."""
    return _C._get_schedule()


@contextmanager
def schedule(order: str | int) -> Iterator[None]:
    """Runs the work that is submitted in a ``with`` block in a chosen order; also a decorator.

    Every order is one that the program has to expect, as only what CUDA promises restricts it. It
    depends only on the order of submissions, so it is reproducible for a program with one thread.
    The block begins and ends with waiting for all devices. Errors of work in it stay with their
    streams. When it begins, memory that no tensor uses is filled with NaN, and from then on new
    memory, too, so that work that comes too early does not find the results of an earlier block.

    Args:
        order: "lazy": a stream runs when a thread or a stream waits for it, and no further.
            "eager": work runs when it is submitted. A number from 0, the seed: streams and the host
            take turns by random priorities, which change twice. "free": streams run side by side,
            as they do without a schedule. See :doc:`/sanitizer`.

    Raises:
        ValueError: ``order`` is none of these.
        ExtraError: The package was built without the extra ``poison``.
        torch.AcceleratorError: Another thread submits work at the begin or the end of the block.

    Example:
        >>> for order in ("lazy", "eager", *range(20)):
        ...     with schedule(order):
        ...         test_step()
    """
    text = str(order)
    if text not in ("free", "lazy", "eager") and not (
        text.isascii() and text.isdigit() and int(text) < 2**64
    ):
        raise ValueError(
            f"schedule: expected 'free', 'lazy', 'eager' or a number from 0, got {order!r}"
        )
    extras.require("torch_openreg.testing.schedule", "poison")
    before = current_schedule()
    _C._set_schedule(text)
    _C._fill_free_memory()
    try:
        yield
    finally:
        _C._set_schedule(before)


def largeTensorTest(
    size: int | str | Callable[..., int], device: str | None = None
) -> Callable[[Callable[Concatenate[_Case, _P], _R]], Callable[Concatenate[_Case, _P], _R]]:
    """Skips a test if its device has less free memory: a decorator, named as torch's.

    torch's own has a list of device types, and skips all tests of others.

    Args:
        size: The bytes that the test needs; or a string such as "4GB", for 4 GiB; or a function of
            the test's arguments that returns them.
        device: The device; None for that of the test case, which is device-generic.

    Raises:
        ValueError: ``size`` is another string.

    Example:
        >>> class TestLarge(TestCase):
        ...     @largeTensorTest("4GB")
        ...     def test_fill(self, device):
        ...         torch.ones(1 << 30, device=device)
    """
    needed = _bytes(size) if isinstance(size, str) else size

    def decorate(
        test: Callable[Concatenate[_Case, _P], _R],
    ) -> Callable[Concatenate[_Case, _P], _R]:
        from torch.testing._internal.common_device_type import largeTensorTest as torchs

        of_torch: Callable[Concatenate[_Case, _P], _R] = torchs(needed, device)(test)

        @functools.wraps(test)
        def run(case: _Case, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            place = torch.device(_device_of(case) if device is None else device)
            if place.type != DEVICE_NAME:
                return of_torch(case, *args, **kwargs)
            gc.collect()
            empty_cache()
            free = mem_get_info(place)[0]
            if free < (needed(case, *args, **kwargs) if callable(needed) else needed):
                raise unittest.SkipTest(f"Insufficient {place} memory")
            return test(case, *args, **kwargs)

        return cast("Callable[Concatenate[_Case, _P], _R]", run)

    return decorate


def _bytes(text: str) -> int:
    number = text[:-2]
    if text[-2:] not in ("GB", "gb") or not number.isdecimal():
        raise ValueError(f"largeTensorTest: expected a size such as '4GB', got {text!r}")
    return int(number) << 30


def _device_of(case: Any) -> str:
    """The device of a device-generic test case, as torch's own decorator finds it."""
    return str(case.get_primary_device() if hasattr(case, "get_primary_device") else case.device)
