"""Events: markers in streams, to wait for and to measure time with."""

import ctypes
from typing import Self

import torch
from torch.types import Device

from torch_openreg import _C
from torch_openreg.openreg._utils import (
    _A_DEVICE,
    DEVICE_TYPE,
    MODULE_NAME,
    _boolean,
    _checked_index,
    _named,
)

__all__ = ["Event"]


def _check_stream(operation: str, stream: object) -> torch.Stream:
    """Returns the argument if it is a stream of an openreg device, else raises."""
    if not isinstance(stream, torch.Stream):
        raise TypeError(f"{_named(operation)}: expected a stream, got {stream!r}")
    if stream.device.type != DEVICE_TYPE:
        raise ValueError(f"{_named(operation)}: expected a stream of {_A_DEVICE}, got {stream}")
    return stream


def _check_event(operation: str, event: object) -> torch.Event:
    """Returns the argument if it is an event, else raises."""
    if not isinstance(event, torch.Event):
        raise TypeError(f"{_named(operation)}: expected an event, got {event!r}")
    return event


class Event(torch.Event):
    """A marker in a stream.

    The first record binds an event to a device. Waits, queries and measurements refer to the latest
    record at the time of the call; recording the event again does not change what others already
    wait for.

    Args:
        enable_timing: Whether a record takes the time; needed for :meth:`elapsed_time`.
        blocking: Accepted for compatibility; a wait always blocks.
        interprocess: Whether other processes may wait for the event; it then has no timing. In
            torch 2.13 :class:`torch.Event` has no such events on any device.

    Attributes:
        device: The device, a ``torch.device``, once the event has been recorded; before that
            without an index.
        event_id: The runtime's handle as a number; 0 before the first record.

    Raises:
        TypeError: An argument is not a bool.
        ValueError: ``interprocess`` and ``enable_timing`` are both True.

    Example:
        >>> start, end = (torch.openreg.Event(enable_timing=True) for _ in range(2))
        >>> start.record()
        >>> y = x @ x
        >>> end.record()
        >>> end.synchronize()
        >>> milliseconds = start.elapsed_time(end)
    """

    _has_timing: bool
    _is_interprocess: bool

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Self:
        """Creates an event. Creates no device."""
        operation = "torch.openreg.Event"
        _boolean(operation, "enable_timing", enable_timing)
        _boolean(operation, "blocking", blocking)
        _boolean(operation, "interprocess", interprocess)
        if interprocess and enable_timing:
            raise ValueError(
                f"{_named(operation)}: expected enable_timing=False with interprocess=True, got "
                "True"
            )
        self = super().__new__(
            cls, torch.device(DEVICE_TYPE), enable_timing=enable_timing, blocking=blocking
        )
        self._has_timing = enable_timing
        self._is_interprocess = interprocess
        if interprocess:
            _C._event_make_interprocess(self)
        return self

    @classmethod
    def from_ipc_handle(cls, device: Device, ipc_handle: bytes) -> Self:
        """Opens the event of another process.

        The event follows the records that its process makes. It can be waited for and queried, but
        not recorded. If its process ends before a record completes, a wait for the record ends with
        an error.

        Args:
            device: The device that the event is bound to.
            ipc_handle: What :meth:`ipc_handle` returned in the other process.

        Raises:
            RuntimeError: This process made the handle, the event has been destroyed, or the process
                that made it has ended.
            TypeError: The handle is not bytes.
            ValueError: The handle has the wrong length.
        """
        if not isinstance(ipc_handle, bytes):
            raise TypeError(
                f"{_named('torch.openreg.Event.from_ipc_handle')}: expected bytes as ipc_handle, "
                f"got {ipc_handle!r}"
            )
        index = _checked_index("torch.openreg.Event.from_ipc_handle", device)
        event = cls(interprocess=True)
        _C._event_open_ipc_handle(event, index, ipc_handle)
        return event

    def ipc_handle(self) -> bytes:
        """Returns a handle with which other processes open the event.

        The handle is valid as long as this object lives. If the event was never recorded, this
        binds it to the current device.

        Raises:
            RuntimeError: The event was created without ``interprocess=True``, or was received from
                another process.
        """
        if not self._is_interprocess:
            raise RuntimeError(
                f"{_named('torch.openreg.Event.ipc_handle')}: expected an event made with "
                "interprocess=True"
            )
        return _C._event_ipc_handle(self)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        """The handle, null before the first record, for a C function that ctypes calls."""
        return ctypes.c_void_p(self.event_id)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Records the event in a stream.

        Args:
            stream: The stream, on the event's device if the event has been recorded before; None
                for the current stream.

        Raises:
            TypeError: The argument is not a stream.
            ValueError: The stream belongs to another device type.
            RuntimeError: The stream is on another device than the event.
        """
        if stream is not None:
            _check_stream("torch.openreg.Event.record", stream)
        super().record(stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Makes later work on a stream wait for the latest record. Returns at once.

        Does nothing if the event was never recorded.

        Args:
            stream: The stream, on any openreg device; None for the current stream.
        """
        if stream is not None:
            _check_stream("torch.openreg.Event.wait", stream)
        super().wait(stream)

    def elapsed_time(self, other: torch.Event) -> float:
        """Returns the milliseconds from this event to another one.

        The resolution is one nanosecond of the machine's monotonic clock.

        Args:
            other: The later event; the result is negative if it is the earlier one.

        Raises:
            ValueError: An event has no timing, or was never recorded.
            RuntimeError: An event is not complete.
        """
        _check_event("torch.openreg.Event.elapsed_time", other)
        if not isinstance(other, Event):
            return super().elapsed_time(other)
        # torch 2.13 rejects events of a subclass. The texts are torch's.
        if not (self._has_timing and other._has_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.event_id == 0 or other.event_id == 0:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return _C._event_elapsed_time(self, other)

    def __repr__(self) -> str:
        """Returns the device, once the event is bound to one, and the runtime's handle."""
        if self.event_id == 0:
            return f"<{MODULE_NAME}.Event uninitialized>"
        return f"<{MODULE_NAME}.Event device={self.device} event_id={self.event_id:#x}>"
