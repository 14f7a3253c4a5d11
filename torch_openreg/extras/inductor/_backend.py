"""Registrations with Dynamo and Inductor, through documented interfaces, and two small classes."""

from typing import Any

import torch

from torch_openreg.dynamo import _interface, _random_state
from torch_openreg.extras.inductor import _internals
from torch_openreg.extras.inductor._cpp_wrapper import (
    OpenRegCppWrapper,
    compile_packages_without_a_precompiled_header,
)
from torch_openreg.extras.inductor._devices import DEVICE_TYPE
from torch_openreg.extras.inductor._graphs import OpenRegGraphPolicy
from torch_openreg.extras.inductor._internals import CppScheduling, DeviceOpOverrides
from torch_openreg.extras.inductor._lowering import LowerAsCpu, original_in_lowering
from torch_openreg.extras.inductor._wrapper import OpenRegWrapper

__all__ = ["OpenRegDeviceOpOverrides", "OpenRegScheduling", "register"]


class OpenRegScheduling(CppScheduling):
    """The CPU's class, whose features Inductor queries. Kernels are scheduled by the CPU's own."""

    def __init__(self, scheduler: Any) -> None:
        if scheduler is not None:
            raise NotImplementedError(
                f"torch.compile: expected a graph without nodes on {DEVICE_TYPE} when it is "
                "scheduled, got a graph that torch_openreg's custom pass has not processed"
            )
        super().__init__(scheduler)  # type: ignore[no-untyped-call]


class OpenRegDeviceOpOverrides(DeviceOpOverrides):
    """Lines that generated wrappers have about streams and devices."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """Returns the import of what gives the number of a device's current stream, in one line."""
        return f"from torch_openreg.dynamo._interface import get_raw_stream as {name}"

    def set_device(self, device_idx: int) -> str:
        """Returns a statement."""
        return f"torch.{DEVICE_TYPE}.set_device({device_idx})"

    def synchronize(self) -> str:
        """Returns a statement."""
        return f"torch.{DEVICE_TYPE}.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        """Returns a context."""
        return f"torch.{DEVICE_TYPE}.device({device_idx})"

    def current_stream(self) -> str:
        """Returns an expression."""
        return f"torch.{DEVICE_TYPE}.current_stream()"

    def cpp_kernel_type(self) -> str:
        """Returns the type of a compiled program's kernel handle, as for the CPU."""
        return "void*"


def register() -> None:
    """Registers our device type."""
    _interface.register_indices()
    _random_state.serve_proxies(original_in_lowering)
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
