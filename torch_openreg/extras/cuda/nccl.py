"""``"nccl"``, where the device type is CUDA: the distributed backend of this package.

torch's Python code creates ``ProcessGroupNCCL`` by that name, and checks whether a backend is one.
So the class is put where builds with NCCL have theirs, with the names that torch and programs use.
"""

import zlib
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed.constants as constants
import torch.distributed.distributed_c10d as c10d

from torch_openreg.extras import distributed
from torch_openreg.extras.distributed import nccl

__all__ = ["install"]

# torch's default timeout for NCCL groups.
_DEFAULT_TIMEOUT = timedelta(minutes=10)

_REASON = "there is no NCCL behind the backend"

# Members of the class in builds with NCCL that raise NotImplementedError here.
_REFUSED = {
    "deregister_mem_pool": f"{_REASON}, and nothing to register memory with",
    "register_mem_pool": f"{_REASON}, and nothing to register memory with",
}


def install() -> None:
    """Makes ``"nccl"`` the backend of this package."""
    distributed.provide()
    group: Any = distributed.ProcessGroupOCCL
    group._set_default_timeout = group.set_timeout
    # Groups abort one by one: none waits for another.
    group._group_start = group._group_end = _do_nothing
    group.uid = property(id, doc="Tells the groups of a process apart.")
    for name, reason in _REFUSED.items():
        setattr(group, name, _refusal(name, reason))
    # Groups connect by their store, split or not.
    group.Options.split_from = property(_return_none, _ignore)
    group.Options.split_color = property(_return_none, _ignore)
    group.Options.config = property(_refusal("Options.config", f"{_REASON} to be configured"))
    for module in (torch.distributed, c10d, torch._C._distributed_c10d):
        setattr(module, "ProcessGroupNCCL", group)  # noqa: B010
    setattr(c10d, "_NCCL_AVAILABLE", True)  # noqa: B010
    # Since torch 2.15, "nccl" is what a function makes, by default of another class.
    if (create := getattr(c10d, "_create_nccl_process_group", None)) is not None:
        c10d.Backend.register_backend(
            "nccl",
            create,
            extended_api=True,
            devices=["cuda"],
            _backend_type=c10d.ProcessGroup.BackendType.NCCL,  # type: ignore[call-arg]
        )
    setattr(torch._C, "_nccl_version", _version)  # noqa: B010
    setattr(torch._C, "_nccl_version_suffix", bytes)  # noqa: B010
    setattr(torch._C._distributed_c10d, "_hash_tensors", _hash_tensors)  # noqa: B010
    for place in (constants, c10d):
        setattr(place, "default_pg_nccl_timeout", _DEFAULT_TIMEOUT)  # noqa: B010


def _version() -> int:
    major, minor, patch = nccl.version()
    return major << 32 | minor << 16 | patch


def _hash_tensors(tensors: "list[torch.Tensor]") -> int:
    """What torch logs of pickled objects with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    checksum = 0
    for tensor in tensors:
        data = tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        checksum = zlib.crc32(data, checksum)
    return checksum


def _refusal(name: str, reason: str) -> Any:
    def refuse(*arguments: object, **keywords: object) -> NoReturn:
        raise NotImplementedError(
            f"ProcessGroupNCCL.{name}: not available on emulated CUDA: {reason}"
        )

    return refuse


def _do_nothing(group: object) -> None:
    del group


def _return_none(options: object) -> None:
    del options


def _ignore(options: object, value: object) -> None:
    del options, value
