"""Interprocess communication: tensors and events that several processes use."""

from types import ModuleType

from torch_openreg.extras import add_module, add_names
from torch_openreg.extras.ipc import ipc

__all__ = ["register"]


def register(module: ModuleType) -> None:
    """Adds ``torch.openreg.ipc_collect``, and has ``multiprocessing`` send what is on devices.

    Args:
        module: The module ``torch.openreg``.
    """
    add_module(module, ipc)
    add_names(module, ipc, ipc.__all__)
    ipc.register_reducers()
