"""What is registered with Dynamo and Inductor, all of it documented interfaces."""

import torch

from torch_openreg.dynamo import _interface
from torch_openreg.inductor import _internals
from torch_openreg.inductor._cpp_wrapper import OpenRegCppWrapper
from torch_openreg.inductor._devices import DEVICE_TYPE
from torch_openreg.inductor._graphs import OpenRegGraphPolicy
from torch_openreg.inductor._lowering import LowerAsCpu
from torch_openreg.inductor._overrides import OpenRegDeviceOpOverrides
from torch_openreg.inductor._scheduling import OpenRegScheduling
from torch_openreg.inductor._wrapper import OpenRegWrapper

__all__ = ["register"]


def register() -> None:
    """Registers our device type."""
    _interface.register_indices()
    # Inductor registers its own at the first question, in the places of ours.
    _internals.get_device_op_overrides("cpu")
    if DEVICE_TYPE == "cuda":
        # A pass replaces softmax, for this type and before ours, by what only Triton's code does.
        _internals.config.online_softmax = False
    _internals.register_device_op_overrides(DEVICE_TYPE, OpenRegDeviceOpOverrides())
    _internals.register_backend_for_device(
        DEVICE_TYPE,
        OpenRegScheduling,
        OpenRegWrapper,
        OpenRegCppWrapper,
        device_custom_pass=LowerAsCpu(),
    )
    # A policy changes how Inductor captures on a real GPU.
    if _internals.config.cudagraph_policy is None and (
        DEVICE_TYPE == "cuda" or not torch.cuda.is_available()
    ):
        _internals.config.cudagraph_policy = OpenRegGraphPolicy()
