"""GPUs that a dry run can take the place of.

``profiles.json`` has one entry for each: what ``torch.cuda.get_device_properties`` and texts of
``torch.OutOfMemoryError`` say of the GPU, which is less than is printed on its box. Drivers differ
by up to 0.2 GiB; the smallest figure that was seen is used. Each entry says where it is from.
Numbers of multiprocessors and sizes of the L2 cache are those of NVIDIA's data sheets.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Limits", "Profile", "names", "profile"]

_GIB = 2**30

# What CUDA itself takes on a device when the first kernel is loaded. Modules are loaded as they are
# needed; the lower figure is of https://github.com/pytorch/pytorch/pull/86509, the upper one the
# largest that users report for programs of torch with lazy loading.
_CONTEXT = (287047680, int(0.6 * _GIB))


@dataclass(frozen=True)
class Limits:
    """Limits of kernels, by compute capability; source: the CUDA C++ programming guide.

    Attributes:
        shared_memory: Bytes for each multiprocessor.
        threads: Resident threads for each multiprocessor.
    """

    shared_memory: int
    threads: int

    @property
    def shared_memory_of_a_block(self) -> int:
        """Bytes that a block may ask for; 1 KiB is the system's, from capability 8.0 on."""
        has_system_part = self.shared_memory > 96 * 1024
        return self.shared_memory - (1024 if has_system_part else 0)


_LIMITS = {
    "7.0": Limits(96 * 1024, 2048),
    "7.5": Limits(64 * 1024, 1024),
    "8.0": Limits(164 * 1024, 2048),
    "8.6": Limits(100 * 1024, 1536),
    "8.9": Limits(100 * 1024, 1536),
    "9.0": Limits(228 * 1024, 2048),
    "10.0": Limits(228 * 1024, 2048),
}


@dataclass(frozen=True)
class Profile:
    """A GPU.

    Attributes:
        name: As the option ``--gpu`` has it.
        device: As the driver calls it.
        capability: The compute capability, such as ``"9.0"``.
        multi_processor_count: The number of multiprocessors.
        l2_cache: Bytes of the L2 cache.
        total_memory: Bytes that the driver reports.
        context: The least and the most bytes that CUDA takes for itself.
        source: Where the total memory is from.
    """

    name: str
    device: str
    capability: str
    multi_processor_count: int
    l2_cache: int
    total_memory: int
    context: tuple[int, int]
    source: str

    @property
    def limits(self) -> Limits:
        """The limits of kernels."""
        return _LIMITS[self.capability]

    @property
    def cublas_workspace(self) -> int:
        """Bytes of the workspace that torch gives cuBLAS for each handle and stream.

        Source: ``getChosenWorkspaceSize`` in aten/src/ATen/cuda/CublasHandlePool.cpp.
        """
        return 32 * 2**20 if self.capability == "9.0" else 4096 * 1024 * 2 + 16 * 1024 * 8


@functools.cache
def _table() -> dict[str, Profile]:
    rows = json.loads(Path(__file__).with_name("profiles.json").read_text(encoding="utf-8"))
    return {
        name: Profile(
            name=name,
            device=row["device"],
            capability=row["capability"],
            multi_processor_count=row["multi_processor_count"],
            l2_cache=row["l2_cache_mib"] * 2**20,
            total_memory=row["total_memory"],
            context=_CONTEXT,
            source=row["source"],
        )
        for name, row in rows.items()
    }


def names() -> list[str]:
    """Returns the names of all profiles."""
    return list(_table())


def profile(name: str) -> Profile:
    """Returns the profile of a GPU.

    Args:
        name: Its name, such as ``"h100"``; upper case, spaces and underscores do not matter.

    Raises:
        ValueError: There is none.
    """
    found = _table().get(name.lower().replace("_", "-").replace(" ", "-"))
    if found is None:
        raise ValueError(f"expected a GPU among {', '.join(names())}, got {name!r}")
    return found
