"""Registrations with Dynamo and Inductor, through documented interfaces."""

import torch

from torch_openreg.dynamo import _interface
from torch_openreg.inductor import _internals
from torch_openreg.inductor._cpp_wrapper import (
    OpenRegCppWrapper,
    compile_packages_without_a_precompiled_header,
)
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
    # Inductor registers its own classes at the first query, and would overwrite these.
    _internals.get_device_op_overrides("cpu")
    if DEVICE_TYPE == "cuda":
        # For this device type, a pass before this package's pass replaces softmax by an operator
        # that only Triton code implements.
        _internals.config.online_softmax = False
    _internals.register_device_op_overrides(DEVICE_TYPE, OpenRegDeviceOpOverrides())
    _internals.register_backend_for_device(
        DEVICE_TYPE,
        OpenRegScheduling,
        OpenRegWrapper,
        OpenRegCppWrapper,
        device_custom_pass=LowerAsCpu(),
    )
    compile_packages_without_a_precompiled_header()
    # A policy changes how Inductor captures on a real GPU.
    if _internals.config.cudagraph_policy is None and (
        DEVICE_TYPE == "cuda" or not torch.cuda.is_available()
    ):
        _internals.config.cudagraph_policy = OpenRegGraphPolicy()
