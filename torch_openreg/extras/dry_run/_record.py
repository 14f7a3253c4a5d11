"""What a program says of its memory: which blocks are parameters, gradients, optimizer state.

The record itself is in C++; see Note [The blocks at the peak] in
csrc/extras/dry_run/MemoryRecord.h. Torch calls the functions here at the moments at which what a
tensor is for is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from torch_openreg import _C
from torch_openreg._backward_calls import follow_backward
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["note_parameters", "start"]

# Of all modules that are still alive.
_parameters: Any = WeakIdKeyDictionary()

_first_forward: list[RemovableHandle] = []


def start() -> None:
    """Starts the record, for as long as the process runs."""
    _C._memory_record_start()
    follow_backward("dry run", _begin_backward)
    register_module_parameter_registration_hook(_add_parameter)
    register_optimizer_step_pre_hook(_begin_step)
    register_optimizer_step_post_hook(_end_step)


def note_parameters() -> None:
    """Notes the blocks of all parameters that are alive."""
    _note(_parameters.keys(), "parameter")


def _add_parameter(module: torch.nn.Module, name: str, parameter: Any) -> None:
    del module, name
    if isinstance(parameter, torch.nn.Parameter):
        _parameters[parameter] = None
        if not _first_forward:
            _first_forward.append(register_module_forward_pre_hook(_begin_forward))


def _begin_forward(module: torch.nn.Module, arguments: object) -> None:
    """The first call of a module since parameters were made: they are where they will be."""
    del module, arguments
    while _first_forward:
        _first_forward.pop().remove()
    note_parameters()


def _begin_backward() -> None:
    note_parameters()
    _C._memory_record_begin_backward()


def _begin_step(optimizer: torch.optim.Optimizer, *arguments: object) -> None:
    del arguments
    parameters = list(_parameters_of(optimizer))
    _note(parameters, "parameter")
    _note((one.grad for one in parameters if one.grad is not None), "gradient")
    _C._memory_record_step(True)


def _end_step(optimizer: torch.optim.Optimizer, *arguments: object) -> None:
    del arguments
    state = (value for values in optimizer.state.values() for value in _values_of(values))
    _note((one for one in state if isinstance(one, torch.Tensor)), "optimizer state")
    _C._memory_record_step(False)


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _values_of(state: object) -> Iterator[object]:
    """The values of an optimizer's state, whose form each optimizer chooses."""
    if isinstance(state, dict):
        for one in state.values():
            yield from _values_of(one)
    elif isinstance(state, (list, tuple)):
        for one in state:
            yield from _values_of(one)
    else:
        yield state


def _note(tensors: Iterable[torch.Tensor], use: str) -> None:
    addresses = [one.untyped_storage().data_ptr() for tensor in tensors for one in _plain(tensor)]
    _C._memory_record_note(addresses, use)


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors of the device that a tensor consists of, such as the shard of a DTensor."""
    if is_traceable_wrapper_subclass(tensor):
        inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        for one in inner:  # of a DTensor, its mesh is one, too
            if isinstance(one, torch.Tensor):
                yield from _plain(one)
    elif tensor.device.type == DEVICE_TYPE and tensor.layout == torch.strided:
        yield tensor
