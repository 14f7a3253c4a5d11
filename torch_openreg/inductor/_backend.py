"""What is registered with Dynamo and Inductor, all of it documented interfaces."""

from torch_openreg import openreg
from torch_openreg.inductor import _internals
from torch_openreg.inductor._devices import DEVICE_TYPE
from torch_openreg.inductor._interface import OpenRegInterface
from torch_openreg.inductor._overrides import OpenRegDeviceOpOverrides
from torch_openreg.inductor._scheduling import OpenRegScheduling
from torch_openreg.inductor._standin import LowerAsCpu
from torch_openreg.inductor._wrapper import OpenRegCppWrapper, OpenRegWrapper

__all__ = ["register"]


def register() -> None:
    """Registers our device type."""
    _internals.register_interface_for_device(DEVICE_TYPE, OpenRegInterface)
    for index in range(openreg.device_count()):
        _internals.register_interface_for_device(f"{DEVICE_TYPE}:{index}", OpenRegInterface)
    # Inductor registers its own at the first question, which would take the place of ours.
    _internals.get_device_op_overrides("cpu")
    _internals.register_device_op_overrides(DEVICE_TYPE, OpenRegDeviceOpOverrides())
    _internals.register_backend_for_device(
        DEVICE_TYPE,
        OpenRegScheduling,
        OpenRegWrapper,
        OpenRegCppWrapper,
        device_custom_pass=LowerAsCpu(),
    )
