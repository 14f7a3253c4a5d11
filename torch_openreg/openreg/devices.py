"""Devices: their number, the current device, their properties.

Each thread has its own current device. An argument ``device`` may be an index, a string such as
``"openreg:1"``, a ``torch.device``, or None for the current device.
"""

from typing import Any

import torch
from torch.types import Device

from torch_openreg import _C
from torch_openreg._C import _DeviceProperties
from torch_openreg.openreg._utils import (
    DEVICE_TYPE,
    _checked_index,
    _device_index,
    _index_or_current,
    _integer,
    _named,
)
from torch_openreg.openreg.initialization import _check_fork, _lazy_init, is_initialized

__all__ = [
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_sync_debug_mode",
    "is_available",
    "is_bf16_supported",
    "is_tf32_supported",
    "set_device",
    "set_sync_debug_mode",
    "synchronize",
]


def device_count() -> int:
    """Returns the number of visible devices.

    It is 0 if a setting is bad; functions that need a device then raise an error that names the
    setting. Does not initialize the device module, so the process can still fork.
    """
    return _C._get_device_count()


def is_available() -> bool:
    """Returns whether there is a device. Never raises."""
    return device_count() > 0


def current_device() -> int:
    """Returns the index of the calling thread's current device."""
    _lazy_init()
    return _C._get_device()


def set_device(device: int | str | torch.device) -> None:
    """Makes a device current for the calling thread.

    Args:
        device: The device. It must have an index, as in ``1`` or ``"openreg:1"``; a negative one
            changes nothing.

    Raises:
        TypeError: The argument is of another type.
        ValueError: It is None, a device without an index, or a device of another type.
        RuntimeError: The device does not exist.
    """
    _lazy_init()
    index = _device_index("torch.openreg.set_device", device, optional=False)
    if index >= 0:
        _C._set_device(_checked_index("torch.openreg.set_device", index))


def _exchange_device(device: int) -> int:
    """Makes a device current and returns the previous one; for a negative index only returns -1."""
    if device < 0:
        return -1
    _lazy_init()
    return _C._exchange_device(_checked_index("torch.openreg.device", device))


def _maybe_exchange_device(device: int) -> int:
    """As ``_exchange_device``, but an index that is out of range changes nothing.

    Then it returns the current device. torch uses it to restore a device.
    """
    if device < 0:
        return -1
    _lazy_init()
    return _C._maybe_exchange_device(device)


class device:
    """Context manager that selects a device. It is reusable and reentrant.

    Args:
        device: The device; None, or a negative index, changes nothing.

    Example:
        >>> with torch.openreg.device(1):
        ...     x = torch.empty(2, device="openreg")  # on openreg:1
    """

    def __init__(self, device: Any) -> None:
        """Looks up the index; entering selects the device."""
        self.idx = -1 if device is None else _device_index("torch.openreg.device", device)
        self._previous: list[int] = []

    @property
    def prev_idx(self) -> int:
        """The device to restore; -1 if the context is not entered or changes nothing."""
        return self._previous[-1] if self._previous else -1

    def __enter__(self) -> None:
        """Selects the device; raises RuntimeError if there is none with this index."""
        self._previous.append(_exchange_device(self.idx))

    def __exit__(self, *exc_info: object) -> None:
        """Restores the device that was current before."""
        previous = self._previous.pop()
        if previous >= 0:
            _C._set_device(previous)


class device_of(device):
    """Context manager that selects the device of an object, if that is an openreg device.

    Args:
        obj: A tensor or storage, on any device; that of another type changes nothing.

    Raises:
        TypeError: The argument is neither a tensor nor a storage.
    """

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage | torch.TypedStorage) -> None:
        """Looks up the index of the object's device."""
        if not isinstance(obj, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
            raise TypeError(
                f"{_named('torch.openreg.device_of')}: expected a tensor or a storage, got {obj!r}"
            )
        super().__init__(obj.device.index if obj.device.type == DEVICE_TYPE else -1)


def get_device_properties(device: Device = None) -> _DeviceProperties:
    """Returns the properties of a device.

    They are ``name``, ``major`` and ``minor`` (see :func:`get_device_capability`),
    ``total_memory`` (bytes), ``multi_processor_count`` (processors that kernels may run on),
    ``physical_index`` (without ``OPENREG_VISIBLE_DEVICES``), ``clock_rate`` (kHz, 0 if not known),
    ``warp_size`` (1) and ``is_integrated`` (True: the memory is the machine's).

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    return _properties("torch.openreg.get_device_properties", device)


def _properties(operation: str, device: Device) -> _DeviceProperties:
    _lazy_init()
    return _C._device_properties(_checked_index(operation, device))


def get_device_name(device: Device = None) -> str:
    """Returns the name of a device, such as ``"OpenReg (Intel(R) Xeon(R) Processor)"``.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    return _properties("torch.openreg.get_device_name", device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Returns the major and minor version of the runtime's C interface, which a device implements.

    Args:
        device: The device; None for the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    properties = _properties("torch.openreg.get_device_capability", device)
    return properties.major, properties.minor


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Returns whether a device can copy from and to the memory of another one, without the host.

    All devices can; one and the same device cannot be a peer of itself.

    Args:
        device: The one device.
        peer_device: The other.

    Raises:
        RuntimeError: The device does not exist.
    """
    _lazy_init()
    operation = "torch.openreg.can_device_access_peer"
    return _C._device_can_access_peer(
        _checked_index(operation, device), _checked_index(operation, peer_device)
    )


def synchronize(device: Device = None) -> None:
    """Waits until all work submitted to a device is done. Releases the GIL while it waits.

    Without an argument, and before the process has used a device, it returns at once and needs no
    device: torch's profiler calls it in programs that only use the CPU.

    Args:
        device: The device; None or a negative index for the current one.

    Raises:
        RuntimeError: The device does not exist. If a kernel has failed, the error has the type that
            the kernel threw, such as IndexError, and names the kernel.
    """
    if device is None and not is_initialized():
        _check_fork()
        return
    _lazy_init()
    _C._device_synchronize(_index_or_current("torch.openreg.synchronize", device))


_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Sets the effect of operators that make the host wait for a stream, such as ``Tensor.item``.

    Functions whose purpose is to wait, such as :func:`synchronize`, are always silent.

    Args:
        debug_mode: 0 or ``"default"``: nothing; 1 or ``"warn"``: warns; 2 or ``"error"``: raises.

    Raises:
        TypeError: The mode is neither an int nor a string.
        ValueError: The mode does not exist.
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_DEBUG_MODES:
            raise ValueError(
                f"set_sync_debug_mode: expected one of {', '.join(_SYNC_DEBUG_MODES)}, "
                f"got {debug_mode!r}"
            )
        debug_mode = _SYNC_DEBUG_MODES.index(debug_mode)
    mode = _integer("torch.openreg.set_sync_debug_mode", "debug_mode", debug_mode)
    if not 0 <= mode < len(_SYNC_DEBUG_MODES):
        raise ValueError(
            f"set_sync_debug_mode: expected 0 (default), 1 (warn) or 2 (error), got {mode}"
        )
    _C._set_sync_debug_mode(mode)


def get_sync_debug_mode() -> int:
    """Returns the mode of :func:`set_sync_debug_mode` as a number."""
    return _C._sync_debug_mode()


def _get_device(device: int | str | torch.device) -> torch.device:
    """Returns the ``torch.device`` of an argument."""
    return torch.device(DEVICE_TYPE, device) if isinstance(device, int) else torch.device(device)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether the device computes in bfloat16, which every openreg device does.

    Args:
        including_emulation: Accepted for compatibility; without effect.
    """
    del including_emulation
    return is_available()


def is_tf32_supported() -> bool:
    """Returns False: the CPU has no TF32."""
    return False
