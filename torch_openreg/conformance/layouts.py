"""Arguments in other layouts: the same values elsewhere in memory, or none at all."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from torch_openreg.conformance.arguments import Arguments, tensors_in

__all__ = ["LAYOUTS", "with_layout"]

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _sliced(tensor: torch.Tensor) -> torch.Tensor:
    """Every other element of a larger tensor, from its second on."""
    memory = tensor.new_ones(*tensor.shape, 2)
    return memory.select(-1, 1).copy_(tensor)


def _transposed(tensor: torch.Tensor) -> torch.Tensor | None:
    """Dimensions in reverse order in memory."""
    if tensor.dim() < 2:
        return None
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(order)


def _swapped(tensor: torch.Tensor) -> torch.Tensor | None:
    """The last two dimensions in reverse order in memory, as of a transposed batch of matrices."""
    if tensor.dim() < 3:
        return None
    return tensor.mT.clone(memory_format=torch.contiguous_format).mT


def _channels_last(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.dim() not in _CHANNELS_LAST:
        return None
    return tensor.clone(memory_format=_CHANNELS_LAST[tensor.dim()])


def _expanded(tensor: torch.Tensor) -> torch.Tensor | None:
    """The first dimension repeats one piece of memory: the only layout here with other values."""
    if not tensor.dim() or tensor.shape[0] < 2:
        return None
    return tensor[:1].clone(memory_format=torch.contiguous_format).expand_as(tensor)


def _offset(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, and neither at the start nor at the end of its memory."""
    memory = tensor.new_ones(tensor.numel() + 8)
    return memory[3 : 3 + tensor.numel()].view(tensor.shape).copy_(tensor)


def _empty(tensor: torch.Tensor) -> torch.Tensor | None:
    """No elements, as the first dimension has none."""
    if not tensor.dim() or not tensor.shape[0]:
        return None
    return tensor[:0].clone(memory_format=torch.contiguous_format)


def _conjugated(tensor: torch.Tensor) -> torch.Tensor | None:
    if not tensor.dtype.is_complex:
        return None
    return torch._conj(tensor.conj().resolve_conj())


def _negated(tensor: torch.Tensor) -> torch.Tensor | None:
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return None
    return torch._neg_view(tensor.neg())


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "contiguous": _contiguous,
    "sliced": _sliced,
    "transposed": _transposed,
    "swapped": _swapped,
    "channels_last": _channels_last,
    "expanded": _expanded,
    "offset": _offset,
    "empty": _empty,
    "conjugated": _conjugated,
    "negated": _negated,
}
_MIXED = [LAYOUTS[name] for name in ("sliced", "transposed", "channels_last", "offset")]


@torch.no_grad()
def with_layout(arguments: Arguments, layout: str) -> Arguments | None:
    """The same arguments with tensors in another layout.

    Tensors that share memory with others, parameters, and those that are sparse, quantized or not
    on the CPU stay as they are.

    Args:
        arguments: On the CPU.
        layout: A key of LAYOUTS, or "mixed" for tensors with layouts of different kinds.

    Returns:
        The arguments, or None if no tensor can have this layout.
    """
    dice = random.Random(0)
    is_changed = False
    uses = Counter(
        one.untyped_storage()._cdata
        for one in {id(one): one for one in arguments.tensors()}.values()
        if one.layout == torch.strided
    )
    others: dict[int, torch.Tensor] = {}

    def other(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal is_changed
        if (
            tensor.layout != torch.strided
            or tensor.is_quantized
            or not tensor.is_cpu
            or isinstance(tensor, torch.nn.Parameter)
            or uses[tensor.untyped_storage()._cdata] > 1
        ):
            return tensor
        change = dice.choice(_MIXED) if layout == "mixed" else LAYOUTS[layout]
        try:
            new = change(tensor.detach())
        except NotImplementedError:  # a dtype that the CPU cannot copy or negate
            return tensor
        if new is None:
            return tensor
        is_changed = True
        return new.requires_grad_(tensor.requires_grad)

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in others:
                others[id(value)] = other(value)
            return others[id(value)]
        if not tensors_in(value) or type(value) not in (tuple, list, dict):
            return value
        if isinstance(value, dict):
            return {name: replaced(part) for name, part in value.items()}
        return type(value)(replaced(part) for part in value)

    new = Arguments(replaced(arguments.args), replaced(arguments.kwargs))
    return new if is_changed else None
