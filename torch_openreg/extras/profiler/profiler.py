"""Ranges, marks and control over the collection, which ``torch.profiler`` itself does not offer.

``torch.profiler.profile(activities=[CPU, PrivateUse1])`` works without this module. It shows the
ranges and marks made here beside its own ``record_function`` blocks.
"""

import atexit
import contextlib
from collections.abc import Iterator
from typing import Self

from torch._C._autograd import _disable_profiler, _enable_profiler, _profiler_enabled
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.autograd.profiler import _run_on_profiler_start, _run_on_profiler_stop

from torch_openreg import _C
from torch_openreg._C import _Activity as Activity
from torch_openreg.openreg._utils import _boolean, _integer, _text
from torch_openreg.openreg.devices import synchronize

__all__ = [
    "Activity",
    "collect",
    "emit_openreg",
    "emit_ranges",
    "mark",
    "profile",
    "range",
    "range_end",
    "range_pop",
    "range_push",
    "range_start",
    "start",
    "stop",
]

# pybind11's classes come without documentation.
Activity.__doc__ = """One thing that a device or the host did, with times of the monotonic clock.

:func:`collect` gives them. ``name`` and ``kind`` say what it was, ``submit_ns``, ``start_ns`` and
``end_ns`` when; ``correlation_id`` links work of a stream with the call that submitted it.
"""

_ATTRIBUTES = {
    "kind": 'What it was: "kernel", "memcpy", "memset", "host function", "synchronize" (a host '
    'thread waited), "memory", "runtime" (a call that submitted work), "range" or "mark".',
    "name": "The name of the kernel, the range or the mark, or else of the function.",
    "device": "The index of the device.",
    "stream": "The number of the stream, 0 for the default one; None if there is none.",
    "correlation_id": "A number that the work and the call that submitted it have in common.",
    "thread_id": "The operating system's number of the thread that ran it.",
    "submit_ns": "When it was enqueued, in nanoseconds.",
    "start_ns": "When it began to run, in nanoseconds.",
    "end_ns": "When it ended, in nanoseconds.",
    "bytes": "How many bytes it copied, set, allocated or freed; 0 for other kinds.",
}
for _name, _text_of_attribute in _ATTRIBUTES.items():
    vars(Activity)[_name].__doc__ = _text_of_attribute


@atexit.register
def _end_session() -> None:
    # torch 2.13 crashes in its static destructors if this thread still profiles.
    if _profiler_enabled() and not _C._is_in_bad_fork():
        _disable_profiler()


def range_push(message: str) -> int:
    """Opens a range on this thread; ranges nest.

    Args:
        message: The range's name.

    Returns:
        The number of ranges that contain it.

    Raises:
        TypeError: The name is not a string.
    """
    return _C._range_push(_text("torch.openreg.profiler.range_push", "message", message))


def range_pop() -> int:
    """Closes the innermost range of this thread.

    Returns:
        The number of ranges that contained it.

    Raises:
        torch.AcceleratorError: No range is open.
    """
    return _C._range_pop()


def range_start(message: str) -> int:
    """Opens a range that need not nest and that another thread may close.

    Args:
        message: The range's name.

    Returns:
        A number for :func:`range_end`.

    Raises:
        TypeError: The name is not a string.
    """
    return _C._range_start(_text("torch.openreg.profiler.range_start", "message", message))


def range_end(range_id: int) -> None:
    """Closes a range.

    Args:
        range_id: What :func:`range_start` returned.

    Raises:
        TypeError: The number is not an int.
        torch.AcceleratorError: No such range is open.
    """
    number = _integer("torch.openreg.profiler.range_end", "range_id", range_id, 0, 2**64 - 1)
    _C._range_end(number)


def mark(message: str) -> None:
    """Marks this moment on this thread.

    Args:
        message: The mark's name.

    Raises:
        TypeError: The name is not a string.
    """
    _C._mark(_text("torch.openreg.profiler.mark", "message", message))


@contextlib.contextmanager
def range(message: str, *args: object, **kwargs: object) -> Iterator[None]:
    """Opens a range for a ``with`` block, or for each call of the function it decorates.

    Args:
        message: The range's name, a format string if there are arguments.
        args: Positional arguments of ``message.format``.
        kwargs: Named arguments of ``message.format``.

    Raises:
        TypeError: The name is not a string.

    Example:
        >>> with torch.openreg.profiler.range("step {}", 7):
        ...     loss = model(x).sum()
    """
    text = _text("torch.openreg.profiler.range", "message", message)
    range_push(text.format(*args, **kwargs) if args or kwargs else text)
    try:
        yield
    finally:
        range_pop()


def start() -> None:
    """Resumes the collection of device activities after :func:`stop`.

    Does nothing unless a session of ``torch.profiler`` or of :func:`collect` is paused.
    """
    _C._profiler_resume()


def stop() -> None:
    """Pauses the collection of device activities; operators are still collected.

    Work that has not run by then is not shown. Does nothing outside of a session.
    """
    _C._profiler_pause()


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Collects inside a ``with`` block only: :func:`start` before it and :func:`stop` after it.

    Example:
        >>> with torch.profiler.profile(activities=activities) as profiler:
        ...     torch.openreg.profiler.stop()
        ...     warm_up()
        ...     with torch.openreg.profiler.profile():
        ...         step()
    """
    start()
    try:
        yield
    finally:
        stop()


@contextlib.contextmanager
def collect() -> Iterator[list[Activity]]:
    """Collects the runtime's own activity records, without ``torch.profiler``.

    Yields:
        A list that is filled when the block ends, ordered by the activities' end times. Work that
        is then still running or queued has no record: synchronize first.

    Raises:
        RuntimeError: A session of ``torch.profiler`` is running, or began inside the block.

    Example:
        >>> with torch.openreg.profiler.collect() as activities:
        ...     y = x + x
        ...     torch.openreg.synchronize()
        >>> [one.name for one in activities if one.kind == "kernel"]
        ['aten::add.out']
    """
    activities: list[Activity] = []
    session = _C._collect_begin()
    try:
        yield activities
    finally:
        activities.extend(_C._collect_end(session))


class emit_ranges:
    """Makes a range of every operator that this thread calls, and records nothing else.

    For use with :func:`collect`, or beside a session of ``torch.profiler`` on another thread. Since
    a thread has one profiler at a time, it cannot be entered inside ``torch.profiler.profile``.

    Args:
        record_shapes: Whether the names contain the sizes of the operators' tensors.

    Raises:
        TypeError: ``record_shapes`` is not a bool.

    Example:
        >>> with torch.openreg.profiler.collect() as activities:
        ...     with torch.openreg.profiler.emit_ranges():
        ...         y = x + x
    """

    def __init__(self, record_shapes: bool = False) -> None:
        """Stores the option."""
        self._record_shapes = _boolean(
            "torch.openreg.profiler.emit_ranges", "record_shapes", record_shapes
        )

    def __enter__(self) -> Self:
        """Begins.

        Raises:
            RuntimeError: This thread has a profiler already.
        """
        config = ProfilerConfig(
            ProfilerState.PRIVATEUSE1,
            self._record_shapes,
            False,
            False,
            False,
            False,
            _ExperimentalConfig(),
        )
        if _profiler_enabled():
            raise RuntimeError("emit_ranges: a profiler is already active on this thread; stop it")
        _enable_profiler(config, set())
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends."""
        _disable_profiler()


class emit_openreg:
    """Makes a range of every autograd operation, in the shape of ``torch.autograd.profiler``.

    This is :class:`emit_ranges` with the arguments of ``emit_nvtx`` and ``emit_itt``. As these do,
    it waits for the current device when it is entered and when it is left, and cannot be entered
    again. An operation of a backward pass is an operator that the thread of autograd calls; it is a
    range, too.

    Args:
        enabled: Whether the context does anything.
        record_shapes: Whether the names contain the sizes of the operators' tensors.

    Raises:
        TypeError: An argument is not a bool.

    Example:
        >>> with torch.openreg.profiler.collect() as activities:
        ...     with torch.openreg.profiler.emit_openreg():
        ...         model(x).sum().backward()
        >>> [one.name for one in activities if one.kind == "range"]  # in order of their ends
        ['aten::t, seq = 0', 'aten::addmm, seq = 1', ..., 'AddmmBackward0, seq = 1', ...]
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        """Stores the options."""
        operation = "torch.openreg.profiler.emit_openreg"
        self.enabled = _boolean(operation, "enabled", enabled)
        self.record_shapes = _boolean(operation, "record_shapes", record_shapes)
        self.entered = False
        self._ranges = emit_ranges(record_shapes)

    def __enter__(self) -> Self:
        """Begins.

        Raises:
            RuntimeError: It has been entered before, or this thread has a profiler already.
        """
        if not self.enabled:
            return self
        if self.entered:
            raise RuntimeError("emit_openreg: this context was entered before; create a new one")
        synchronize()
        self._ranges.__enter__()
        _run_on_profiler_start()
        self.entered = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends."""
        if not self.enabled:
            return
        try:
            synchronize()
        finally:
            self._ranges.__exit__(*exc_info)
            _run_on_profiler_stop()
