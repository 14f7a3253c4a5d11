"""``torch.distributed`` on the device, by the name under which programs import it."""

from torch_openreg import extras

extras.require("torch_openreg.distributed", "distributed")

from torch_openreg.extras.distributed import (  # noqa: E402
    BACKEND_NAME,
    ProcessGroupOCCL,
    monitored_barrier,
)

__all__ = ["BACKEND_NAME", "ProcessGroupOCCL", "monitored_barrier"]
