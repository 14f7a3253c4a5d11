"""What distinguishes a result of a device from the CPU's: bits, or more than a stated tolerance."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.testing._comparison import default_tolerances

__all__ = ["CLOSE", "EXACT", "Tolerance", "difference"]


# docs: tolerance
@dataclass(frozen=True)
class Tolerance:
    """How far floating-point and complex numbers may be from the CPU's; all others are equal.

    Attributes:
        factor: A multiple of the tolerances of ``torch.testing.assert_close``, which depend on the
            dtype: for float32, 1.3e-6 of the number and 1e-5. 0 requires identical bits; all NaNs
            are equal.
        has_contents: Whether contents are compared at all. Random numbers of a device with a
            different generator are not compared; other properties are.
    """

    factor: float = 1.0
    has_contents: bool = True

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        """The relative and the absolute tolerance of a dtype."""
        relative, absolute = default_tolerances(dtype)
        return relative * self.factor, absolute * self.factor

    def without_contents(self) -> "Tolerance":
        """The same, for random numbers."""
        return replace(self, has_contents=False)


EXACT = Tolerance(0.0)
CLOSE = Tolerance(1.0)
# docs: end

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(
    actual: Any, expected: Any, device: torch.device, tolerance: Tolerance = EXACT
) -> str | None:
    """Describes the first difference between a result of the device and the CPU's.

    Compared are types and structure, and of tensors device, dtype, layout, sizes, strides,
    requires_grad, and the contents.

    Args:
        actual: The result; its tensors have to be on the device.
        expected: The CPU's.
        device: The device.
        tolerance: How far numbers may be apart.

    Returns:
        The description, or None if there is no difference.
    """
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(actual, expected, device, tolerance)
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
        if not is_same and isinstance(expected, float):
            relative, absolute = tolerance.of(torch.float32)
            is_same = not tolerance.has_contents or math.isclose(
                actual, expected, rel_tol=relative, abs_tol=absolute
            )
        return None if is_same else f"{actual!r} instead of {expected!r}"
    for place, one, other in parts:
        text = difference(one, other, device, tolerance)
        if text is not None:
            return f"{place}{'' if text.startswith('[') else ': '}{text}"
    return None


def _tensor_difference(
    actual: Any, expected: torch.Tensor, device: torch.device, tolerance: Tolerance
) -> str | None:
    if not isinstance(actual, torch.Tensor):
        return f"a {type(actual).__name__} instead of a tensor"
    if actual.device != device:
        return f"on {actual.device} instead of {device}"
    for what in ("dtype", "layout", "requires_grad", "is_quantized"):
        one, other = getattr(actual, what), getattr(expected, what)
        if one != other:
            return f"{what} {one} instead of {other}"
    if expected.layout == torch.jagged:
        return _jagged_difference(actual, expected, tolerance)
    if actual.shape != expected.shape:
        return f"shape {actual.shape} instead of {expected.shape}"
    if expected.layout != torch.strided:
        return _sparse_difference(actual, expected, tolerance)
    if actual.stride() != expected.stride():
        return f"stride {actual.stride()} instead of {expected.stride()}, {list(expected.shape)}"
    if not tolerance.has_contents:
        return None
    return _contents_difference(actual.detach().cpu(), expected.detach(), tolerance)


def _sparse_difference(
    actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance
) -> str | None:
    if expected.layout == torch.sparse_coo:
        parts: tuple[str, ...] = ("_indices", "_values", "is_coalesced")
    elif expected.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = ("crow_indices", "col_indices", "values")
    elif expected.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = ("ccol_indices", "row_indices", "values")
    else:
        parts = ("to_dense",)
    for part in parts:
        one, other = getattr(actual.detach(), part)(), getattr(expected.detach(), part)()
        text = difference(one, other, actual.device, tolerance)
        if text is not None:
            return f".{part}: {text}"
    return None


def _jagged_difference(actual: Any, expected: Any, tolerance: Tolerance) -> str | None:
    """Of nested tensors: a ragged size has a unique name, which is not compared."""
    for what, one, other in (
        ("dimensions", actual.dim(), expected.dim()),
        ("ragged dimension", actual._ragged_idx, expected._ragged_idx),
        ("has lengths", actual.lengths() is not None, expected.lengths() is not None),
    ):
        if one != other:
            return f"{what} {one} instead of {other}"
    for part in ("values", "offsets", "lengths"):
        one, other = getattr(actual.detach(), part)(), getattr(expected.detach(), part)()
        text = None if other is None else difference(one, other, actual.device, tolerance)
        if text is not None:
            return f".{part}: {text}"
    return None


def _contents_difference(
    actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance
) -> str | None:
    if actual.is_quantized:
        actual, expected = actual.int_repr(), expected.int_repr()
    actual_bits, expected_bits = _bits(actual), _bits(expected)
    if torch.equal(actual_bits, expected_bits):
        return None
    differs = (actual_bits != expected_bits).reshape(*actual.shape, -1).any(-1)
    if actual.dtype.is_floating_point or actual.dtype.is_complex:
        dtype = actual.dtype
        actual, expected = _comparable(actual), _comparable(expected)
        differs &= ~((actual != actual) & (expected != expected))
        if tolerance.factor:
            relative, absolute = tolerance.of(dtype)
            differs &= ~torch.isclose(actual, expected, rtol=relative, atol=absolute)
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
