"""``torch.distributed`` on the device: the backend ``occl``.

``init_process_group()`` finds it by the device; by name it is ``"occl"``, or
``"cpu:gloo,openreg:occl"`` for a group that also supports CPU tensors. Where the device
type is CUDA, it is what ``"nccl"`` means. See :doc:`/distributed`.
"""

import functools
import importlib
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch

from torch_openreg import _C
from torch_openreg._imports import after_import
from torch_openreg.extras import add_module
from torch_openreg.extras.distributed import nccl
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["BACKEND_NAME", "ProcessGroupOCCL", "monitored_barrier", "provide", "register"]

BACKEND_NAME = "nccl" if DEVICE_TYPE == "cuda" else "occl"
ProcessGroupOCCL = _C.ProcessGroupOCCL
# pybind11's classes come without documentation.
ProcessGroupOCCL.__doc__ = """A group of processes of the backend ``occl``: collectives on streams.

``torch.distributed.init_process_group`` and ``new_group`` make it, and
``group._get_backend(torch.device("openreg"))`` returns it. Programs use the functions of
``torch.distributed``. Beyond those of ``torch.distributed.Backend`` it has ``monitored_barrier``,
see :func:`monitored_barrier`, and ``options``.

Args:
    store: The store by which the ranks find each other.
    rank: The rank of this process in the group, from 0.
    size: How many ranks there are.
    options: The options.

Raises:
    RuntimeError: The ranks cannot be connected, or not in time.
"""
ProcessGroupOCCL.Options.__doc__ = """The options of a group, for ``pg_options``.

Args:
    is_high_priority_stream: Whether the group's streams have the high priority. Groups that are
        split from it have the same.
"""


# docs: distributed-register
def register(module: ModuleType) -> None:
    """Registers the backend with torch.

    Args:
        module: The module ``torch.openreg``, which gets the module ``nccl``.
    """
    add_module(module, nccl, is_public=True)
    importlib.import_module("torch_openreg.distributed")  # so that it is an attribute
    if DEVICE_TYPE == "cuda":
        return  # torch.cuda's part registers it as "nccl"
    provide()
    # A list: of a string, torch would take each character for a device.
    torch.distributed.Backend.register_backend(
        BACKEND_NAME, _create_group, extended_api=True, devices=[DEVICE_TYPE]
    )


# docs: end


def provide() -> None:
    """Creates the backend's Gloo group, and registers support for distributed tensors."""
    _C._set_gloo_factory(_create_gloo)
    _install("_gloo")
    _install("_fake")
    for module, own in (
        ("torch.distributed.tensor._random", "_random_state"),
        ("torch.distributed.tensor", "_attention"),
    ):
        after_import(module, functools.partial(_install, own))


def _install(module: str) -> None:
    importlib.import_module(f"{__name__}.{module}").install()


def _create_group(options: Any, group_options: Any) -> Any:
    """Makes a group, as torch's ``_DistributedBackendOptions`` describe it."""
    if group_options is None:
        group_options = ProcessGroupOCCL.Options()
    elif not isinstance(group_options, ProcessGroupOCCL.Options):
        raise TypeError(
            f"occl: expected pg_options of type ProcessGroupOCCL.Options, got {group_options!r}"
        )
    group_options._timeout = options.timeout
    group_options.group_name = options.group_id
    group_options.global_ranks_in_group = options.global_ranks_in_group
    return ProcessGroupOCCL(options.store, options.group_rank, options.group_size, group_options)


def _create_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Connects the ranks of a group by Gloo, on the calling thread."""
    return torch.distributed.ProcessGroupGloo(store, rank, size, timeout)


def monitored_barrier(
    group: "torch.distributed.ProcessGroup | None" = None, timeout: timedelta | None = None
) -> None:
    """Waits on the host until all ranks of a group have entered; names the missing ranks.

    As ``torch.distributed.monitored_barrier``, which supports only Gloo groups. It counts as a
    collective of the group on the device: it comes after those that were issued before it.

    Args:
        group: The group; None for the default one.
        timeout: The longest time to wait; None for the group's.

    Raises:
        torch.distributed.DistBackendError: Ranks have not come in time; the text names them. The
            group has failed then and cannot be used any more.
        ValueError: The group has no backend of this kind.
    """
    if group is None:
        group = torch.distributed.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device(DEVICE_TYPE))
    if not isinstance(backend, ProcessGroupOCCL):
        raise ValueError(
            f"monitored_barrier: expected a group with the backend {BACKEND_NAME}, got {backend!r}"
        )
    backend.monitored_barrier(timeout or timedelta(milliseconds=-1))
