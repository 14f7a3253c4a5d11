"""Arguments of which one number, or the contents of one tensor, is another, often a wrong one."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from torch_openreg.conformance.arguments import Arguments

__all__ = ["scaled", "with_other_contents", "with_other_numbers"]

_Path = tuple[Any, ...]

# Too large for a byte, and small enough to be a size.
_LARGE = 300


def with_other_numbers(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Replaces each number among the arguments in turn, by a few others.

    Args:
        arguments: On the CPU.

    Yields:
        What was replaced by what, and the arguments.
    """
    for path, value in _leaves((arguments.args, arguments.kwargs), ()):
        if type(value) not in (bool, int, float, complex):
            continue
        for other in _others(value):
            yield f"{_shown(path)} {value} -> {other}", _replaced(arguments, path, other)


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        candidates: list[Any] = [value + 1, -1, 0, -3, _LARGE]
    elif isinstance(value, float):
        candidates = [value / 2 + 0.25, -1.0, 0.0, -0.5, 10.0, math.inf, math.nan]
    else:
        candidates = [value * 1j, complex(math.nan, 0)]
    return [other for other in candidates if other != value]


@torch.no_grad()
def with_other_contents(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Fills each tensor among the arguments in turn with a few other values.

    Sizes, strides and types stay, so that nothing but the contents can be wrong.

    Args:
        arguments: On the CPU.

    Yields:
        Which tensor was filled with what, and the arguments.
    """
    for path, value in _leaves((arguments.args, arguments.kwargs), ()):
        if (
            not isinstance(value, torch.Tensor)
            or value.layout != torch.strided
            or value.is_quantized
            or not value.numel()
        ):
            continue
        for text, other in _other_contents(value):
            yield f"{_shown(path)} -> {text}", _replaced(arguments, path, other)


@torch.no_grad()
def scaled(arguments: Arguments, factor: float) -> Arguments:
    """The arguments with all floating-point tensors multiplied by a number."""
    new = arguments
    for path, value in _leaves((arguments.args, arguments.kwargs), ()):
        if (
            isinstance(value, torch.Tensor)
            and value.layout == torch.strided
            and value.dtype.is_floating_point
        ):
            new = _replaced(new, path, _like(value, value.detach() * factor))
    return new


def _other_contents(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    dtype = tensor.dtype
    if dtype == torch.bool:
        fills: list[Any] = [False, True]
    elif dtype.is_floating_point or dtype.is_complex:
        fills = [0.0, -1.0, 2.5, math.nan, math.inf]
    elif dtype.is_signed:
        fills = [0, -1, 100]
    else:
        fills = [0, 100]
    for fill in fills:
        try:
            contents = torch.full(tensor.shape, fill, dtype=dtype)
        except RuntimeError:  # a dtype without NaN or infinity
            continue
        yield str(fill), _like(tensor, contents)
    numbers = tensor.detach()
    if dtype.is_floating_point and dtype.itemsize == 1:
        numbers = numbers.float()  # types of eight bits have no operators
    if dtype != torch.bool and dtype.is_signed:
        yield "negative", _like(tensor, numbers.neg())
    if tensor.dim() and tensor.shape[-1] > 1:
        yield "reversed", _like(tensor, numbers.flip(-1))


def _like(tensor: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
    new = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    if _overlaps(tensor):
        new = torch.empty(tensor.size(), dtype=tensor.dtype)
    return new.copy_(contents).requires_grad_(tensor.requires_grad)


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _leaves(value: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    if type(value) in (tuple, list, torch.Size):
        for index, part in enumerate(value):
            yield from _leaves(part, (*path, index))
    elif type(value) is dict:
        for name, part in value.items():
            yield from _leaves(part, (*path, name))
    else:
        yield path, value


def _replaced(arguments: Arguments, path: _Path, leaf: Any) -> Arguments:
    args, kwargs = _with_leaf((arguments.args, arguments.kwargs), path, leaf)
    return Arguments(args, kwargs)


def _with_leaf(value: Any, path: _Path, leaf: Any) -> Any:
    if not path:
        return leaf
    if isinstance(value, dict):
        return value | {path[0]: _with_leaf(value[path[0]], path[1:], leaf)}
    parts = list(value)
    parts[path[0]] = _with_leaf(parts[path[0]], path[1:], leaf)
    return parts if isinstance(value, list) else tuple(parts)


def _shown(path: _Path) -> str:
    return f"argument {'.'.join(str(part) for part in path[1:])}"
