"""The backend ``fake``: collectives that do nothing, for tests of one process."""

import torch.distributed.distributed_c10d as c10d

from torch_openreg._imports import after_import
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["install"]


def _serve() -> None:
    served = c10d.Backend.backend_capability[c10d.Backend.FAKE]
    if DEVICE_TYPE not in served:
        served.append(DEVICE_TYPE)


def install() -> None:
    """Makes ``"fake"`` a backend for the device."""
    _serve()
    # torch registers the backend there, with a list of its own.
    after_import("torch.testing._internal.distributed.fake_pg", _serve)
