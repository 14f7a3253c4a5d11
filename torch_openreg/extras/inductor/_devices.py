"""The device type, and the proxy devices that replace it while Inductor lowers a graph.

Note [Proxy devices]
    Inductor checks ``device.type == "cpu"`` in many places to choose between code for the CPU and
    code for a GPU. The kernels are the CPU's, so between the last pass over the graph and the code
    of the wrapper ``openreg:k`` is replaced by the proxy device ``cpu:k``. CPU tensors are on
    ``cpu``, without an index, which is a different device: Inductor neither fuses work of the two
    devices nor removes a copy between them.
"""

import torch

from torch_openreg import _C
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["DEVICE_TYPE", "HOST", "is_ours", "is_proxy", "original", "proxy_of"]

HOST = torch.device("cpu")


def is_ours(device: torch.device) -> bool:
    """Whether it is a device of this package, by its original name."""
    return device.type == DEVICE_TYPE


def is_proxy(device: torch.device | None) -> bool:
    """Whether it is the proxy of a device of this package."""
    return device is not None and device.type == "cpu" and device.index is not None


def proxy_of(device: torch.device) -> torch.device:
    """Returns the device that replaces a device in a graph that is being lowered.

    For a device of this package, that is its proxy; a device without an index is the current one.
    For the CPU it is ``cpu``, also if the program has used ``cpu:0``.
    """
    if is_ours(device):
        index = _C._get_device() if device.index is None else device.index
        return torch.device("cpu", index)
    return HOST if device.type == "cpu" else device


def original(device: torch.device) -> torch.device:
    """Returns the original device of a device in a lowered graph."""
    return torch.device(DEVICE_TYPE, device.index) if is_proxy(device) else device
