"""Checks of poisoned memory: what was written past the end of allocations and to free memory."""

from typing import Any, Literal, NamedTuple

from torch_openreg import _C
from torch_openreg.openreg._utils import DEVICE_TYPE, MODULE_NAME
from torch_openreg.openreg.devices import device_count
from torch_openreg.openreg.initialization import is_initialized

__all__ = ["Corruption", "check"]


class Corruption(NamedTuple):
    """Bytes of a block of device memory that were written though no tensor owned them."""

    device: int
    address: int  # of the block
    offset: int  # of the first byte, from the address
    length: int  # from the first to the last such byte
    value: int  # of the first
    requested_size: int  # of the block's allocation; 0 if it is free
    kind: Literal["guard zone", "free block"]  # written past the end, or after the free
    frames: list[dict[str, Any]]  # the stack that allocated it, if recorded

    def __str__(self) -> str:
        """Returns a sentence."""
        return (
            f"{DEVICE_TYPE}:{self.device}: the {self.kind} of the block at {self.address:#x} "
            f"({self.requested_size} bytes requested) was written to: {self.length} bytes from "
            f"offset {self.offset}, the first is {self.value:#x}"
        )


def check() -> list[Corruption]:
    """Checks for writes past the end of allocations and to freed memory; waits for all devices.

    Needs ``OPENREG_MEMORY_POISON=1``. Finds a write past the end of a block if it is within 512
    bytes and the block is still allocated. Memory that is free at a check is filled with a pattern,
    and the next check finds whether it was written to since, unless it has been allocated again.
    Blocks of private pools are checked only while they are allocated.

    Returns:
        What was found, by device and address.

    Raises:
        RuntimeError: ``OPENREG_MEMORY_POISON`` is not 1, or an allocator is inconsistent.
    """
    if not _C._is_memory_poisoned():
        raise RuntimeError(
            f"{MODULE_NAME}.memory.check: expected the environment variable OPENREG_MEMORY_POISON "
            "to be 1 when the process started, got 0; without it there are no guard zones"
        )
    if not is_initialized():
        return []
    for index in range(device_count()):
        if not _C._is_allocator_valid(index):
            raise RuntimeError(
                f"{MODULE_NAME}.memory.check: expected a consistent allocator of "
                f"{DEVICE_TYPE}:{index}, got one with blocks that contradict each other"
            )
    return [
        Corruption(
            kind="free block" if found.pop("is_free") else "guard zone",
            **found,
        )
        for found in _C._memory_corruptions()
    ]
