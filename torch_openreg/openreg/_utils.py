"""Checks of the arguments of ``torch.openreg``: devices, and the types of others."""

from operator import index as as_index
from typing import Any

import torch

from torch_openreg import _C
from torch_openreg._device_name import DEVICE_NAME

__all__: list[str] = []

# The device type that the library serves.
DEVICE_TYPE = "cuda" if _C._serves_cuda() else DEVICE_NAME
# As which programs know the module torch_openreg.openreg.
MODULE_NAME = f"torch.{DEVICE_NAME}"
_A_DEVICE = f"{'an' if DEVICE_TYPE[0] in 'aeiou' else 'a'} {DEVICE_TYPE} device"


def _setting(variable: str) -> str:
    """Returns the value of a setting, or its default."""
    _, default, _, _, value, _ = next(row for row in _C._settings() if row[0] == variable)
    return default if value is None else value


def _named(operation: str) -> str:
    """Returns the name by which programs call a function of ``torch.openreg``, for error texts.

    Where the device type is CUDA, it is that of ``torch.cuda`` if that module has the function: a
    program that was written for CUDA has called that one.
    """
    own = operation.replace("torch.openreg", MODULE_NAME, 1)
    if DEVICE_TYPE != "cuda":
        return own
    found: Any = torch.cuda
    for part in operation.removeprefix("torch.openreg.").split("."):
        found = getattr(found, part, None)
    return own if found is None else operation.replace("torch.openreg", "torch.cuda", 1)


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Returns the device index of an argument. torch looks up this function by name.

    Args:
        device: An int, which is returned unchanged; a string or a ``torch.device``; an instance of
            ``torch.openreg.device``; or None.
        optional: Whether a device without an index (None or ``"openreg"``) means the current one.
        allow_cpu: Whether the CPU is allowed, which has the index -1.

    Raises:
        TypeError: The argument has another type.
        ValueError: The device has another type, or has no index and needs one.
        RuntimeError: The string names no device.
    """
    return _device_index("torch.openreg", device, optional, allow_cpu)


def _device_index(
    operation: str, device: object, optional: bool = True, allow_cpu: bool = False
) -> int:
    """As ``_get_device_index``, with the name of the operation for the error text."""
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise RuntimeError(
                f"{_named(operation)}: expected {_A_DEVICE}, such as '{DEVICE_TYPE}:0', got "
                f"{device!r}: {error}"
            ) from None
    index: int | None
    if device is None:
        index = None
    elif isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != DEVICE_TYPE:
            raise ValueError(f"{_named(operation)}: expected {_A_DEVICE}, got {device}")
        index = device.index
    else:
        # The context manager torch.openreg.device; devices.py imports this file.
        index = getattr(device, "idx", None)
        if not isinstance(index, int):
            raise TypeError(
                f"{_named(operation)}: expected an int, a string, a torch.device or None, got "
                f"{device!r}"
            )
    if index is not None:
        return index
    if not optional:
        raise ValueError(f"{_named(operation)}: expected a device with an index, got {device}")
    return _C._get_device()


def _checked_index(operation: str, device: object, optional: bool = True) -> int:
    """Returns the index of an existing device.

    Raises:
        RuntimeError: The device does not exist, or no device is available. Where the device type is
            CUDA, ``torch.AcceleratorError`` for a device that does not exist.
    """
    index = _device_index(operation, device, optional)
    count = _C._get_device_count()
    if not 0 <= index < count:
        _C._ensure_has_device()
        if DEVICE_TYPE == "cuda":
            _C._check_device_index(max(-1, min(index, 2**31 - 1)))  # raises CUDA's error
        hint = "" if index < 0 else " OPENREG_DEVICE_COUNT says how many devices there are."
        raise RuntimeError(
            f"{_named(operation)}: The device index is out of range. It must be in [0, {count}), "
            f"but got {index}.{hint}"
        )
    return index


def _index_or_current(operation: str, device: object) -> int:
    """As ``_checked_index``; a negative index means the current device, as in torch.cuda."""
    index = _device_index(operation, device)
    return _checked_index(operation, index if index >= 0 else None)


def _integer(
    operation: str,
    argument: str,
    value: Any,
    least: int | None = -(2**63),
    greatest: int | None = 2**63 - 1,
) -> int:
    """Returns an argument as an int.

    Args:
        operation: The public function, for the error text.
        argument: The name of its argument.
        value: The argument: an int, or what Python takes for one, such as ``numpy.int64``.
        least: The least value that is allowed; None for any.
        greatest: The greatest; None for any.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is out of range.
    """
    try:
        number = as_index(value)
    except TypeError:
        raise TypeError(
            f"{_named(operation)}: expected an int as {argument}, got {value!r}"
        ) from None
    if (least is not None and number < least) or (greatest is not None and number > greatest):
        raise ValueError(
            f"{_named(operation)}: expected {argument} from {least} to {greatest}, got {number}"
        )
    return number


def _boolean(operation: str, argument: str, value: Any) -> bool:
    """Returns an argument that has to be a bool, else raises TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{_named(operation)}: expected a bool as {argument}, got {value!r}")
    return value


def _text(operation: str, argument: str, value: Any) -> str:
    """Returns an argument that has to be a string, else raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{_named(operation)}: expected a string as {argument}, got {value!r}")
    return value


def _pool_id(operation: str, argument: str, value: Any) -> tuple[int, int]:
    """Returns an argument that has to be the id of a memory pool, else raises TypeError."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(one, int) for one in value):
        return value
    raise TypeError(
        f"{_named(operation)}: expected the id of a memory pool, a pair of ints, as {argument}, "
        f"got {value!r}"
    )
