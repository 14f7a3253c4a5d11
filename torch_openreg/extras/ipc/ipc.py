"""Interprocess communication: tensors and events that several processes use.

Tensors can be sent through the queues and pipes of :mod:`torch.multiprocessing` to processes
started with ``spawn`` or ``forkserver``. The receiver shares the sender's memory without a copy.
"""

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_openreg import _C
from torch_openreg.openreg._utils import DEVICE_TYPE
from torch_openreg.openreg.events import Event
from torch_openreg.openreg.initialization import _check_fork, _lazy_init, is_initialized

__all__ = ["ipc_collect"]

_Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def ipc_collect() -> None:
    """Frees memory that was sent to other processes and is no longer used there.

    This also happens when the next tensor is sent, and when memory runs short. The function also
    checks for receivers that died.
    """
    if is_initialized():
        _C._collect_shared()


def _receive_storage(message: bytes) -> torch.UntypedStorage:
    _lazy_init()
    return _C._receive_storage(message)


# docs: reduce-storage
def _reduce_storage(storage: torch.UntypedStorage) -> _Reduced:
    """Reduces a storage, of any device, for ``ForkingPickler``.

    torch's own reducers take tensors of every layout apart, down to storages.
    """
    if storage.device.type != DEVICE_TYPE:
        reduced: _Reduced = reductions.reduce_storage(storage)
        return reduced
    _check_fork()
    return _receive_storage, (_C._share_storage(storage),)


# docs: end


def _receive_lazy_view(
    rebuild: Callable[..., torch.Tensor], arguments: tuple[Any, ...], is_conj: bool, is_neg: bool
) -> torch.Tensor:
    tensor = rebuild(*arguments)
    if is_neg:
        tensor = torch._neg_view(tensor)
    return tensor.conj() if is_conj else tensor


def _reduce_tensor(tensor: torch.Tensor) -> _Reduced:
    """Reduces a tensor, of any device, as torch does.

    torch 2.13 sends the bytes of a conjugate or negative view, and forgets that it is one.
    """
    reduced: _Reduced
    is_plain = tensor.layout == torch.strided and not tensor.is_nested
    if tensor.device.type == DEVICE_TYPE and is_plain and (tensor.is_conj() or tensor.is_neg()):
        stored = tensor.conj() if tensor.is_conj() else tensor
        stored = torch._neg_view(stored) if tensor.is_neg() else stored
        reduced = reductions.reduce_tensor(stored)
        return _receive_lazy_view, (*reduced, tensor.is_conj(), tensor.is_neg())
    reduced = reductions.reduce_tensor(tensor)
    return reduced


def _reduce_event(event: Event) -> _Reduced:
    handle = event.ipc_handle()  # binds the event to a device
    return Event.from_ipc_handle, (event.device.index, handle)


def register_reducers() -> None:
    """Makes the queues and pipes of ``multiprocessing`` send what lives on openreg devices.

    torch has reducers for storages of the device type CUDA.
    """
    if DEVICE_TYPE != "cuda":
        ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
        ForkingPickler.register(torch.Tensor, _reduce_tensor)
    ForkingPickler.register(Event, _reduce_event)
