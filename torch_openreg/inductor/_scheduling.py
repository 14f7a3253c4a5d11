"""The scheduling class of the device type, for queries by its own name."""

from typing import Any

from torch_openreg.inductor._devices import DEVICE_TYPE
from torch_openreg.inductor._internals import CppScheduling

__all__ = ["OpenRegScheduling"]


class OpenRegScheduling(CppScheduling):
    """The CPU's class, whose features Inductor queries. Kernels are scheduled by the CPU's own."""

    def __init__(self, scheduler: Any) -> None:
        if scheduler is not None:
            raise NotImplementedError(
                f"torch.compile: expected a graph without nodes on {DEVICE_TYPE} when it is "
                "scheduled, got a graph that torch_openreg's custom pass has not processed"
            )
        super().__init__(scheduler)  # type: ignore[no-untyped-call]
