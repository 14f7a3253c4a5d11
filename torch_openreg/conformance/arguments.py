"""Arguments of calls, copied to a device: nested values, and tensors with all their properties."""

import contextlib
import copy
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from torch_openreg.conformance.target import target

__all__ = ["CPU", "Arguments", "HostTensor", "tensors_in"]

CPU = torch.device("cpu")

# Names of arguments that contain the device of a call. Samples of torch name cuda where that is
# available.
_DEVICES = ("cpu", target().device.type)


@dataclass(frozen=True)
class HostTensor:
    """A tensor argument that has to be on the CPU, whatever the device."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class Arguments:
    """Arguments of one call, on the CPU. They are not changed; calls use copies."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def with_keywords(self, **kwargs: Any) -> "Arguments":
        """The same with other or further keyword arguments."""
        return Arguments(self.args, self.kwargs | kwargs)

    def copied_to(self, device: torch.device) -> "Arguments":
        """A copy on a device, also of names of the CPU's and of this device type.

        Tensors keep dtype, sizes, strides, storage offset, conjugate and negative bits and
        requires_grad. Tensors that share memory share it in the copy.
        """
        copier = _Copier(device)
        return Arguments(copier.copy(self.args), copier.copy(self.kwargs))

    def with_other_numbers(self) -> "Arguments":
        """The same with other contents of the tensors, on the CPU."""
        copier = _Copier(CPU, is_for_call=False)
        others = Arguments(copier.copy(self.args), copier.copy(self.kwargs))
        for tensor in others.tensors():
            _change_numbers(tensor)
        return others

    def tensors(self) -> list[torch.Tensor]:
        """All tensors in the order of the arguments."""
        return tensors_in((self.args, self.kwargs))

    def __str__(self) -> str:
        """Shapes, dtypes and numbers, for messages."""
        parts = [_shown(arg) for arg in self.args]
        parts += [f"{name}={_shown(value)}" for name, value in self.kwargs.items()]
        return f"({', '.join(parts)})"


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for part in value for tensor in tensors_in(part)]


@torch.no_grad()
def _change_numbers(tensor: torch.Tensor) -> None:
    """Shifts the elements by one, so that indices stay valid, and sets some that are none to 0."""
    if tensor.layout != torch.strided or not tensor.is_cpu or not tensor.numel():
        return
    numbers = tensor.clone().flatten().roll(1)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        numbers[::3] = 0
    with contextlib.suppress(RuntimeError):  # elements that share memory
        tensor.copy_(numbers.view(tensor.shape))


class _Copier:
    """Copies values to a device; shared tensors and memory stay shared."""

    def __init__(self, device: torch.device, is_for_call: bool = True) -> None:
        self._device = device
        self._is_for_call = is_for_call
        self._tensors: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}

    def copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                self._tensors[id(value)] = self._copy_tensor(value)
            return self._tensors[id(value)]
        if isinstance(value, HostTensor):
            return value.tensor.clone() if self._is_for_call else value
        if isinstance(value, str | torch.device) and str(value).split(":")[0] in _DEVICES:
            return self._device
        if isinstance(value, torch.Size):
            return value
        if isinstance(value, torch.nn.utils.rnn.PackedSequence):
            return cast(Any, value).to(self._device)
        if isinstance(value, torch.nn.Module):
            return copy.deepcopy(value).to(self._device)
        if isinstance(value, tuple):
            parts = [self.copy(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, list):
            return [self.copy(part) for part in value]
        if isinstance(value, dict):
            return {name: self.copy(part) for name, part in value.items()}
        return value

    @torch.no_grad()
    def _copy_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type not in _DEVICES:
            return tensor
        if not tensor.is_cpu:
            tensor = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
        if tensor.layout != torch.strided or tensor.is_quantized:
            new = tensor.detach().clone().to(self._device)
        else:
            new = torch.empty(0, dtype=tensor.dtype, device=self._device).set_(
                self._copy_storage(tensor), tensor.storage_offset(), tensor.size(), tensor.stride()
            )
            if tensor.is_conj():
                new = torch._conj(new)
            if tensor.is_neg():
                new = torch._neg_view(new)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(new, tensor.requires_grad)
        return new.requires_grad_(tensor.requires_grad)

    def _copy_storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            contents = torch.empty(0, dtype=torch.uint8).set_(storage)
            new = torch.empty(storage.nbytes(), dtype=torch.uint8, device=self._device)
            self._storages[storage._cdata] = new.copy_(contents).untyped_storage()
        return self._storages[storage._cdata]


def _shown(value: Any) -> str:
    if isinstance(value, HostTensor):
        return f"{_shown(value.tensor)} on the host"
    if isinstance(value, torch.Tensor):
        strides = "" if value.layout != torch.strided or value.is_contiguous() else value.stride()
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}{list(value.shape)}{f' strides {strides}' if strides else ''}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {_shown(part)}' for name, part in value.items())}}}"
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        return f"[{', '.join(_shown(part) for part in value)}]"
    return repr(value)
