"""The properties of a device, in CUDA's form."""

import os
import re
import uuid
from dataclasses import dataclass, replace

from torch_openreg import _C
from torch_openreg.extras import has
from torch_openreg.openreg._utils import _setting

__all__ = ["CudaDeviceProperties", "architectures", "device_properties", "version_of_cuda"]


class CudaUuid(str):
    """The UUID of a device: its text, and its 16 bytes."""

    __slots__ = ()

    @property
    def bytes(self) -> list[int]:
        """The bytes as numbers."""
        return list(uuid.UUID(self).bytes)


@dataclass(frozen=True, repr=False)
class CudaDeviceProperties:
    """What ``torch.cuda.get_device_properties`` returns.

    Name, memory and number of processors are those of the device; the capability is a setting,
    ``OPENREG_CUDA_CAPABILITY``. The limits of kernels are those of capability 8.0: programs compute
    launch sizes from them, and nothing here enforces them. In a dry run for a GPU, all are the
    GPU's.
    """

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    index: int
    uuid: CudaUuid
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 166912
    shared_memory_per_multiprocessor: int = 167936
    clock_rate: int = 0
    memory_clock_rate: int = 0
    memory_bus_width: int = 0
    L2_cache_size: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    @property
    def gcnArchName(self) -> str:  # the name that programs use
        """The name of the architecture, of ROCm; on CUDA that of the device."""
        return self.name

    def __repr__(self) -> str:
        """Returns the properties in the format of CUDA's."""
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid})"
        )


def version_of_cuda() -> str | None:
    """Returns what ``torch.version.cuda`` is to be: the setting ``OPENREG_CUDA_VERSION``.

    Reads the environment, as ``import torch`` has to leave the settings unread. An invalid value is
    reported when they are read; until then it is None.
    """
    text = os.environ.get("OPENREG_CUDA_VERSION", "none")
    return text if re.fullmatch(r"[0-9]+\.[0-9]+", text) else None


def _capability() -> tuple[int, int]:
    major, minor = _setting("OPENREG_CUDA_CAPABILITY").split(".")
    return int(major), int(minor)


def architectures() -> str:
    """Returns the architectures that the build of torch has kernels for: that of the devices."""
    major, minor = _capability()
    return f"sm_{major}{minor}"


def device_properties(device: int) -> CudaDeviceProperties:
    """Returns the properties of a device."""
    own = _C._device_properties(device)
    major, minor = _capability()
    properties = CudaDeviceProperties(
        name=own.name,
        major=major,
        minor=minor,
        total_memory=own.total_memory,
        multi_processor_count=own.multi_processor_count,
        index=own.physical_index,
        uuid=CudaUuid(uuid.UUID(int=own.physical_index)),
        clock_rate=own.clock_rate,
    )
    return _of_profile(properties) if has("dry_run") else properties


def _of_profile(properties: CudaDeviceProperties) -> CudaDeviceProperties:
    """The same with what is known of the GPU of a dry run."""
    from torch_openreg.extras.dry_run import dry_run

    if (chosen := dry_run.chosen_profile()) is None:
        return properties
    limits = chosen.limits
    return replace(
        properties,
        name=chosen.device,
        total_memory=chosen.total_memory,
        multi_processor_count=chosen.multi_processor_count,
        max_threads_per_multi_processor=limits.threads,
        shared_memory_per_block_optin=limits.shared_memory_of_a_block,
        shared_memory_per_multiprocessor=limits.shared_memory,
        L2_cache_size=chosen.l2_cache,
    )
