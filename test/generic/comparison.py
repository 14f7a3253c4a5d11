"""What distinguishes a result on openreg from the CPU's: nothing may, down to the bits."""

from typing import Any

import torch

__all__ = ["difference"]

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(actual: Any, expected: Any, device: torch.device) -> str | None:
    """Describes the first difference between a result of the device and the CPU's.

    Compared are types and structure, and of tensors device, dtype, layout, sizes, strides,
    requires_grad, and the contents bit by bit; a NaN is as good as any other.

    Args:
        actual: The result; its tensors have to be on the device.
        expected: The CPU's.
        device: The device.

    Returns:
        The description, or None if there is no difference.
    """
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(actual, expected, device)
    if isinstance(expected, torch.device):
        return None if actual == device else f"{actual} instead of {device}"
    if type(actual) is not type(expected):
        return f"a {type(actual).__name__} instead of a {type(expected).__name__}"
    if isinstance(expected, dict):
        if list(actual) != list(expected):
            return f"keys {list(actual)} instead of {list(expected)}"
        parts = [(f"[{key!r}]", actual[key], expected[key]) for key in expected]
    elif isinstance(expected, tuple | list):
        if len(actual) != len(expected):
            return f"{len(actual)} values instead of {len(expected)}"
        parts = [(f"[{i}]", *pair) for i, pair in enumerate(zip(actual, expected, strict=True))]
    else:
        is_same = actual == expected or (actual != actual and expected != expected)
        return None if is_same else f"{actual!r} instead of {expected!r}"
    for place, one, other in parts:
        text = difference(one, other, device)
        if text is not None:
            return f"{place}{'' if text.startswith('[') else ': '}{text}"
    return None


def _tensor_difference(actual: Any, expected: torch.Tensor, device: torch.device) -> str | None:
    if not isinstance(actual, torch.Tensor):
        return f"a {type(actual).__name__} instead of a tensor"
    if actual.device != device:
        return f"on {actual.device} instead of {device}"
    for what in ("dtype", "layout", "shape", "requires_grad", "is_quantized"):
        one, other = getattr(actual, what), getattr(expected, what)
        if one != other:
            return f"{what} {one} instead of {other}"
    if expected.layout != torch.strided:
        return _sparse_difference(actual, expected)
    if actual.stride() != expected.stride():
        return f"stride {actual.stride()} instead of {expected.stride()}, {list(expected.shape)}"
    return _contents_difference(actual.detach().cpu(), expected.detach())


def _sparse_difference(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    if expected.layout == torch.sparse_coo:
        parts = ("_indices", "_values", "is_coalesced")
    elif expected.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = ("crow_indices", "col_indices", "values")
    elif expected.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = ("ccol_indices", "row_indices", "values")
    else:
        parts = ("to_dense",)
    for part in parts:
        one, other = getattr(actual.detach(), part)(), getattr(expected.detach(), part)()
        text = difference(one, other, actual.device)
        if text is not None:
            return f".{part}: {text}"
    return None


def _contents_difference(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    if actual.is_quantized:
        actual, expected = actual.int_repr(), expected.int_repr()
    actual_bits, expected_bits = _bits(actual), _bits(expected)
    if torch.equal(actual_bits, expected_bits):
        return None
    differs = (actual_bits != expected_bits).reshape(*actual.shape, -1).any(-1)
    if actual.dtype.is_floating_point or actual.dtype.is_complex:
        actual, expected = _comparable(actual), _comparable(expected)
        differs &= ~((actual != actual) & (expected != expected))
    if not differs.any():
        return None
    where = tuple(differs.nonzero()[0].tolist())
    return (
        f"{int(differs.sum())} of {differs.numel()} elements differ, at {list(where)} "
        f"{actual[where].item()!r} instead of {expected[where].item()!r}"
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The contents as integers; a complex number is two."""
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().view(_INTEGER_OF_SIZE[tensor.element_size()])


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a dtype that has a comparison with itself."""
    return tensor if tensor.dtype.is_complex else tensor.double()
