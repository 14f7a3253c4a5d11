"""Functions of ``torch.openreg`` inside compiled functions, as those of ``torch.cuda``.

Dynamo would trace into their bodies, and stop at the bindings. Those whose results change only with
the current device are constants of a compiled function, which is guarded by the current device.
Those with a counterpart in ``torch.accelerator``, which Dynamo compiles, are replaced by it.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch._dynamo.utils import common_constant_types
from torch._dynamo.variables.ctx_manager import (
    GenericDeviceVariable,
    register_device_context_manager,
)
from torch._dynamo.variables.torch import (
    constant_fold_functions as _constant_fold_functions,
)
from torch._dynamo.variables.torch import (
    constant_fold_functions_need_guards as _guarded_constant_fold_functions,
)
from torch._dynamo.variables.user_defined import UserDefinedClassVariable
from torch.types import Device

from torch_openreg import openreg
from torch_openreg._C import _DeviceProperties
from torch_openreg.openreg._utils import DEVICE_TYPE, _get_device_index
from torch_openreg.openreg.devices import _exchange_device, _maybe_exchange_device

__all__ = ["install"]

_CONSTANTS = (
    openreg.device_count,
    openreg.get_device_capability,
    openreg.get_device_name,
    openreg.get_device_properties,
    openreg.is_available,
)
# They may change between calls of a compiled function, which is then compiled again.
_GUARDED_CONSTANTS = (openreg.current_device, openreg.is_initialized)


class _DeviceVariable(GenericDeviceVariable):
    """Represents torch.openreg.device."""

    _exchange_fn = staticmethod(_exchange_device)
    _maybe_exchange_fn = staticmethod(_maybe_exchange_device)

    @staticmethod
    def _get_device_index_fn(device: Any, optional: bool) -> int:
        return -1 if device is None else _get_device_index(device, optional)

    def module_name(self) -> str:
        return f"torch.{DEVICE_TYPE}"

    def python_type(self) -> type:
        return openreg.device


def _synchronize(device: Device = None) -> None:
    if device is None:
        torch.accelerator.synchronize()
    else:
        torch.accelerator.synchronize(device)


def _current_stream(device: Device = None) -> Any:
    if device is None:
        return torch.accelerator.current_stream()
    return torch.accelerator.current_stream(device)


def _stream(stream: torch.Stream | None) -> Any:
    return nullcontext() if stream is None else stream


def install() -> None:
    """Has Dynamo compile calls of them."""
    if DEVICE_TYPE == "cuda":
        return  # those of torch.cuda, by torch itself
    constants: Any = _constant_fold_functions
    guarded_constants: Any = _guarded_constant_fold_functions
    for function in (*_CONSTANTS, *_GUARDED_CONSTANTS):
        constants[function] = None
        torch.compiler.allow_in_graph(function)
    guarded_constants.update(dict.fromkeys(_GUARDED_CONSTANTS))
    common_constant_types.add(_DeviceProperties)
    register_device_context_manager(openreg.device, _DeviceVariable)
    torch.compiler.substitute_in_graph(openreg.synchronize)(_synchronize)
    torch.compiler.substitute_in_graph(openreg.current_stream)(_current_stream)
    torch.compiler.substitute_in_graph(openreg.stream)(_stream)
    UserDefinedClassVariable._in_graph_classes().update({openreg.Stream, openreg.Event})


install()
