"""Ranges, marks and control over the collection, which ``torch.profiler`` itself does not offer.

``torch.profiler.profile(activities=[CPU, PrivateUse1])`` works without this module. It shows the
ranges and marks made here beside its own ``record_function`` blocks.
"""

import atexit
import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from torch._C._autograd import _disable_profiler, _enable_profiler, _profiler_enabled
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

from torch_openreg import _C
from torch_openreg._C import _Activity as Activity

__all__ = [
    "Activity",
    "collect",
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


def _end_session() -> None:
    # torch 2.13 crashes in its static destructors if this thread still profiles.
    if _profiler_enabled() and not _C._is_in_bad_fork():
        _disable_profiler()


atexit.register(_end_session)


def range_push(message: str) -> int:
    """Opens a range on this thread; ranges nest.

    Args:
        message: The range's name.

    Returns:
        The number of ranges that contain it.
    """
    return _C._range_push(message)


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
    """
    return _C._range_start(message)


def range_end(range_id: int) -> None:
    """Closes a range.

    Args:
        range_id: What :func:`range_start` returned.

    Raises:
        torch.AcceleratorError: No such range is open.
    """
    _C._range_end(range_id)


def mark(message: str) -> None:
    """Marks this moment on this thread.

    Args:
        message: The mark's name.
    """
    _C._mark(message)


@contextlib.contextmanager
def range(message: str, *args: object, **kwargs: object) -> Iterator[None]:
    """Opens a range for a ``with`` block, or for each call of the function it decorates.

    Args:
        message: The range's name, a format string if there are arguments.
        args: Positional arguments of ``message.format``.
        kwargs: Named arguments of ``message.format``.

    Example:
        >>> with torch.openreg.profiler.range("step {}", 7):
        ...     loss = model(x).sum()
    """
    range_push(message.format(*args, **kwargs) if args or kwargs else message)
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

    Example:
        >>> with torch.openreg.profiler.collect() as activities:
        ...     with torch.openreg.profiler.emit_ranges():
        ...         y = x + x
    """

    def __init__(self, record_shapes: bool = False) -> None:
        """Stores the option."""
        self._record_shapes = record_shapes

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
            raise RuntimeError("emit_ranges: expected a thread without a profiler, got one with")
        _enable_profiler(config, set())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends."""
        _disable_profiler()
