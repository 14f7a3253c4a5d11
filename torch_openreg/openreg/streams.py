"""Streams: queues of work that run concurrently with each other and with the host.

Each thread has a current stream on each device, to which it submits work; initially this is the
device's default stream.
"""

import ctypes
from typing import Self

import torch
from torch.types import Device

from torch_openreg import _C
from torch_openreg.openreg._utils import MODULE_NAME, _index_or_current, _integer
from torch_openreg.openreg.events import Event, _check_event, _check_stream
from torch_openreg.openreg.initialization import _lazy_init, is_initialized

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "get_stream_from_external",
    "is_current_stream_capturing",
    "set_stream",
    "stream",
]

# How bindings name a stream: stream_id, device_index, device_type.
_StreamId = tuple[int, int, int]

# The range of a C int; numbers beyond it are clamped in the same way.
_LEAST_INT, _GREATEST_INT = -(2**31), 2**31 - 1


def _id_of(stream: torch.Stream) -> _StreamId:
    return stream.stream_id, stream.device_index, stream.device_type


class _Selection:
    """Selects a stream; has the device and the streams that were current before, to be restored."""

    __slots__ = ("_destination_stream", "_source_device", "_source_stream")

    def __init__(self, operation: str, stream: torch.Stream) -> None:
        _check_stream(operation, stream)
        _lazy_init()
        self._source_device = _C._get_device()
        self._source_stream = _C._current_stream(self._source_device)
        self._destination_stream = _C._current_stream(stream.device_index)
        set_stream(stream)

    def restore(self) -> None:
        _C._set_stream(*self._destination_stream)
        _C._set_stream(*self._source_stream)
        _C._set_device(self._source_device)


class Stream(torch.Stream):
    """A queue of work on one device.

    Streams come from a pool of 32 per device and priority; further requests return the same streams
    again, in turn. As a context manager, which is reusable and reentrant, a stream becomes the
    current one, and its device the current device.

    Args:
        device: The device; None or a negative index for the current one.
        priority: A lower number is a higher priority. Numbers outside :meth:`priority_range` are
            clamped to it.
        stream_id: Identifies an existing stream, together with ``device_index`` and
            ``device_type``; the other arguments are then not used.
        device_index: See ``stream_id``.
        device_type: See ``stream_id``.

    Attributes:
        device: The device, a ``torch.device``.
        stream_id: The number of the stream on its device; 0 is the default stream.
        native_handle: The runtime's handle (``orStream_t``) as a number.

    Raises:
        TypeError: ``priority`` is not an int, or ``device`` is none of what names a device.
        ValueError: The device has another type.
        RuntimeError: The device does not exist.

    Example:
        >>> side = torch.openreg.Stream()
        >>> with side:
        ...     y = x + 1  # runs on the side stream
        >>> torch.openreg.current_stream().wait_stream(side)
    """

    _selections: list[_Selection]

    def __new__(
        cls,
        device: Device = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
    ) -> Self:
        """Takes a stream from the pool, or wraps an existing one."""
        if stream_id is None or device_index is None or device_type is None:
            _lazy_init()
            index = _index_or_current("torch.openreg.Stream", device)
            # Of any size, since values out of range are clamped.
            number = _integer("torch.openreg.Stream", "priority", priority, None, None)
            clamped = min(max(number, _LEAST_INT), _GREATEST_INT)
            stream_id, device_index, device_type = _C._stream_from_pool(clamped, index)
        self = super().__new__(
            cls, stream_id=stream_id, device_index=device_index, device_type=device_type
        )
        self._selections = []
        return self

    @property
    def priority(self) -> int:
        """The priority; a lower number is a higher one."""
        return _C._stream_priority(*_id_of(self))

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        """The handle, for a C function that ctypes calls."""
        # torch's stub lacks the property.
        return ctypes.c_void_p(self.native_handle)  # type: ignore[attr-defined]

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns the least and the greatest priority, such as (0, -1)."""
        return _C._stream_priority_range()

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records an event in this stream.

        Args:
            event: The event; None for a new one, without timing.

        Returns:
            The event.

        Raises:
            TypeError: The argument is not an event.
            RuntimeError: The event has been recorded on another device.
        """
        if event is None:
            event = Event()
        _check_event("torch.openreg.Stream.record_event", event).record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Makes later work on this stream wait for the latest record of an event.

        Returns at once. Does nothing if the event was never recorded.

        Args:
            event: The event, of any openreg device.

        Raises:
            TypeError: The argument is not an event.
        """
        _check_event("torch.openreg.Stream.wait_event", event).wait(self)

    def wait_stream(self, other: torch.Stream) -> None:
        """Makes later work on this stream wait for all work submitted to another one so far.

        Returns at once.

        Args:
            other: The other stream, on any openreg device.

        Raises:
            TypeError: The argument is not a stream.
            ValueError: The stream belongs to another device type.
        """
        _check_stream("torch.openreg.Stream.wait_stream", other)
        self.wait_event(other.record_event())

    def query(self) -> bool:
        """Returns whether all work submitted to the stream is done.

        Raises:
            RuntimeError: A kernel has failed; see :func:`synchronize`.
        """
        return super().query()

    def synchronize(self) -> None:
        """Waits until all work submitted to the stream is done. Releases the GIL while it waits.

        Raises:
            RuntimeError: A kernel has failed; see :func:`torch.openreg.synchronize`.
        """
        super().synchronize()

    def __enter__(self) -> Self:
        """Selects the stream and its device."""
        self._selections.append(_Selection("torch.openreg.Stream", self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Restores the device and the streams that were current before."""
        self._selections.pop().restore()

    def __eq__(self, other: object) -> bool:
        """Whether the other object is the same stream, even as a ``torch.Stream``."""
        return isinstance(other, torch.Stream) and _id_of(self) == _id_of(other)

    def __ne__(self, other: object) -> bool:
        """The opposite of ``==``; torch.Stream has its own comparison."""
        return not self == other

    def __hash__(self) -> int:
        """Returns the hash of ``torch.Stream``, since equal streams need equal hashes."""
        return super().__hash__()

    def __repr__(self) -> str:
        """Returns the device and the number of the stream."""
        return f"<{MODULE_NAME}.Stream device={self.device} stream_id={self.stream_id}>"


class ExternalStream(Stream):
    """A stream that was created through the runtime's C API.

    The creator still owns the stream and has to keep it alive while it is in use here.

    Args:
        stream_ptr: The handle (``orStream_t``) as a number.
        device: The stream's device; None for the current one.

    Raises:
        TypeError: ``stream_ptr`` is not an int.
        ValueError: ``stream_ptr`` is negative or has more than 64 bits.
        RuntimeError: The number is not the handle of a live stream of that device.
    """

    def __new__(cls, stream_ptr: int, device: Device = None) -> Self:
        """Wraps the stream."""
        _lazy_init()
        index = _index_or_current("torch.openreg.ExternalStream", device)
        handle = _integer("torch.openreg.ExternalStream", "stream_ptr", stream_ptr, 0, 2**64 - 1)
        stream_id, device_index, device_type = _C._external_stream(handle, index)
        return super().__new__(
            cls, stream_id=stream_id, device_index=device_index, device_type=device_type
        )


class StreamContext:
    """Context manager that selects a stream, and its device.

    On exit, it restores the device and the streams that were current before. It is reusable and
    reentrant.

    Args:
        stream: The stream; None changes nothing.

    Raises:
        TypeError: The argument is not a stream; raised by entering.
        ValueError: The stream belongs to another device type; raised by entering.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        """Stores the stream; entering selects it."""
        self.stream = stream
        self._selections: list[_Selection] = []

    def __enter__(self) -> None:
        """Selects the stream."""
        if self.stream is not None:
            self._selections.append(_Selection("torch.openreg.stream", self.stream))

    def __exit__(self, *exc_info: object) -> None:
        """Restores what was current before."""
        if self.stream is not None:
            self._selections.pop().restore()


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context manager that selects a stream, and its device; see :class:`StreamContext`.

    Args:
        stream: The stream; None changes nothing.

    Raises:
        TypeError: The argument is not a stream; raised by entering.
        ValueError: The stream belongs to another device type; raised by entering.

    Example:
        >>> with torch.openreg.stream(side):
        ...     y = x + 1
    """
    return StreamContext(stream)


def _wrap(stream: _StreamId) -> Stream:
    stream_id, device_index, device_type = stream
    return Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def current_stream(device: Device = None) -> Stream:
    """Returns the calling thread's current stream on a device.

    Args:
        device: The device; None or a negative index for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    _lazy_init()
    return _wrap(_C._current_stream(_index_or_current("torch.openreg.current_stream", device)))


def default_stream(device: Device = None) -> Stream:
    """Returns the default stream of a device, which all threads share.

    Args:
        device: The device; None or a negative index for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    _lazy_init()
    return _wrap(_C._default_stream(_index_or_current("torch.openreg.default_stream", device)))


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream current for the calling thread, and its device the current device.

    Prefer the context manager :func:`stream`, which restores the previous ones.

    Args:
        stream: The stream; None changes nothing.

    Raises:
        TypeError: The argument is not a stream.
        ValueError: The stream belongs to another device type.
    """
    if stream is None:
        return
    _set_stream_by_id(*_id_of(_check_stream("torch.openreg.set_stream", stream)))


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """As ``set_stream``, for the three numbers that identify a stream."""
    _lazy_init()
    _C._set_stream(stream_id, device_index, device_type)
    _C._set_device(device_index)


def get_stream_from_external(data_ptr: int, device: Device = None) -> Stream:
    """Returns a stream that was created through the runtime's C API; see :class:`ExternalStream`.

    Args:
        data_ptr: The handle (``orStream_t``) as a number.
        device: The stream's device; None for the current one.

    Raises:
        RuntimeError: The number is not the handle of a live stream of that device.
    """
    return ExternalStream(data_ptr, device)


def is_current_stream_capturing() -> bool:
    """Returns whether work on the current stream is recorded into a graph and not run."""
    return is_initialized() and _C._is_stream_capturing(*_C._current_stream(-1))


def _sleep(cycles: int) -> None:
    """Keeps the current stream busy for a time, as ``torch.cuda._sleep`` does. Returns at once.

    Args:
        cycles: How long, in nanoseconds: a cycle is one.

    Raises:
        TypeError: The number is not an int.
        ValueError: It is negative, or does not fit 64 bits.
    """
    duration_ns = _integer("torch.openreg._sleep", "cycles", cycles, 0)
    _lazy_init()
    _C._sleep(duration_ns)
