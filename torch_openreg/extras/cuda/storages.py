"""Storages: what ``torch.UntypedStorage`` does for CUDA in C++ that this build of torch lacks."""

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from torch_openreg import _C
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["install"]

_new_storage = torch.UntypedStorage.__new__
_resize_storage = torch.UntypedStorage.resize_


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Creates a storage; torch's own constructor supports only devices of its build."""
    device = kwargs.get("device")
    if device is None or torch.device(device).type != DEVICE_TYPE:
        return _new_storage(cls, *args, **kwargs)
    contents = args[0] if args else kwargs.get("size", 0)
    if isinstance(contents, int):
        return torch.empty(contents, dtype=torch.uint8, device=device).untyped_storage()
    values = torch.tensor(list(contents), dtype=torch.uint8)
    return values.to(device).untyped_storage()


def _resize(self: Any, size: int) -> Any:
    """Gives the storage another size, with the contents that fit."""
    if self.device.type != DEVICE_TYPE:
        return _resize_storage(self, size)
    _C._resize_storage(self, size)
    return self


# --- Processes. See Note [Messages] in csrc/extras/ipc/StorageMessage.h: one message names the
# memory, the lease on it and the event to wait for. It is torch's counter, too; the event's handle
# stays empty.

_NO_HANDLE = b""


def _share(self: Any) -> tuple[int, bytes, int, int, bytes, int, bytes, bool]:
    message = _C._share_storage(self)
    return self.device.index, message, self.nbytes(), 0, message, 0, _NO_HANDLE, False


def _receive(
    cls: Any,
    device: int,
    message: bytes,
    size: int,
    offset: int,
    counter: bytes,
    counter_offset: int,
    event: bytes,
    waits: bool,
) -> Any:
    del cls, device, size, offset, counter, counter_offset, event, waits  # parts of the message
    return _C._receive_storage(message)


def _release_counter(cls: Any, message: bytes, counter_offset: int) -> None:
    # Of a message that torch has the storage of already: its own, or one that arrives again.
    del cls, counter_offset
    _C._receive_storage(message)


def _receive_event(device: Any, handle: bytes) -> Any:
    return torch.cuda.Event.from_ipc_handle(device, handle)


def _reduce_event(event: Any) -> tuple[Any, tuple[Any, bytes]]:
    return _receive_event, (event.device, event.ipc_handle())


def install() -> None:
    """Teaches ``torch.UntypedStorage`` the device type."""
    storage: Any = torch.UntypedStorage
    storage.__new__ = _new
    storage.resize_ = _resize
    storage._share_cuda_ = _share
    storage._new_shared_cuda = classmethod(_receive)
    storage._release_ipc_counter_cuda = classmethod(_release_counter)
    ForkingPickler.register(torch.cuda.Event, _reduce_event)
