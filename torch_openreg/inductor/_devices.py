"""Our device type, and the devices that stand in for it while Inductor lowers a graph.

Note [Stand-in devices]
    Inductor asks ``device.type == "cpu"`` at many places to choose between the CPU's way and that
    of a GPU. Our kernels are the CPU's, so between the last pass over the graph and the code of the
    wrapper ``openreg:k`` is called ``cpu:k``. A CPU tensor is on ``cpu``, without an index, which
    is another device: Inductor neither fuses work of the two nor forgets a copy between them.
"""

import torch

from torch_openreg import _C

__all__ = ["DEVICE_TYPE", "HOST", "is_ours", "is_stand_in", "original", "stand_in"]

DEVICE_TYPE = "cuda" if _C._serves_cuda() else "openreg"
HOST = torch.device("cpu")


def is_ours(device: torch.device) -> bool:
    """Whether it is a device of ours, by its own name."""
    return device.type == DEVICE_TYPE


def is_stand_in(device: torch.device | None) -> bool:
    """Whether it stands for a device of ours."""
    return device is not None and device.type == "cpu" and device.index is not None


def stand_in(device: torch.device) -> torch.device:
    """Returns what stands for a device in a graph that is being lowered.

    That is another device for ours, without an index the current one, and ``cpu`` for the CPU,
    which programs may call ``cpu:0``.
    """
    if is_ours(device):
        index = _C._get_device() if device.index is None else device.index
        return torch.device("cpu", index)
    return HOST if device.type == "cpu" else device


def original(device: torch.device) -> torch.device:
    """Returns the device that a device of a lowered graph stands for."""
    return torch.device(DEVICE_TYPE, device.index) if is_stand_in(device) else device
