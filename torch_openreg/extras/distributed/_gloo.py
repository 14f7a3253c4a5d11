"""Groups of the backend ``gloo`` that serve tensors of the device beside those on the CPU."""

from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from torch_openreg import _C
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["install"]


def install() -> None:
    """Makes ``"gloo"`` a backend for the device.

    torch creates one ``ProcessGroupGloo`` and registers it with the group for each device type of
    the backend. For the device, what stages the tensors on the host takes its place.
    """
    served = c10d.Backend.backend_capability[c10d.Backend.GLOO]
    if DEVICE_TYPE not in served:
        served.append(DEVICE_TYPE)
    group: Any = torch.distributed.ProcessGroup
    register = group._register_backend

    def register_backend(
        self: Any, device: torch.device, backend_type: Any, backend: Any = None
    ) -> None:
        if device.type == DEVICE_TYPE and backend_type == group.BackendType.GLOO:
            # One backend of each type: CUSTOM is another one than that of the CPU.
            backend_type, backend = group.BackendType.CUSTOM, _C._DeviceGloo(backend)
        register(self, device, backend_type, backend)

    group._register_backend = register_backend
