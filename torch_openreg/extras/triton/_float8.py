"""Conversions of float8e4b15, which Triton's compiler for CUDA has in assembly only.

The format has a sign, 4 bits of exponent with the bias 15, and 3 of mantissa. So its numbers are
those of float16 whose exponent is below 16, with a shorter mantissa. It has no infinities and no
NaN.
"""

from __future__ import annotations

from typing import Any

from triton.language import core

__all__ = ["convert_float8e4b15"]

# In float16, the largest number. It is rounded down: the pattern 0x7f is not used.
_LARGEST = 0x3F00


def convert_float8e4b15(
    value: Any, dtype: Any, fp_downcast_rounding: Any = None, *, _semantic: Any
) -> Any:
    """Converts a value to float8e4b15 or from it.

    Numbers that are too large become the largest one, and so does a NaN. Ties are rounded away from
    zero.

    Args:
        value: The value in a kernel.
        dtype: The type of the result, which is a block if the value is one.
        fp_downcast_rounding: Has no effect: the format has one rounding.
        _semantic: Of Triton's front end.
    """
    if value.type.scalar.is_fp8e4b15():
        return _semantic.cast(_to_half(value, _semantic), dtype.scalar)
    if not value.type.scalar.is_fp16():
        if not value.type.scalar.is_fp32():
            value = _semantic.cast(value, core.float32)
        value = _semantic.cast(value, core.float16, "rtz")
    return _from_half(value, _semantic)


def _to_half(value: Any, semantic: Any) -> Any:
    # Triton keeps the format in bytes.
    raw = semantic.cast(_named(value, core.uint8), core.uint16)
    sign = semantic.shl(semantic.and_(raw, 0x80), 8)
    magnitude = semantic.shl(semantic.and_(raw, 0x7F), 7)
    return semantic.bitcast(semantic.or_(sign, magnitude), core.float16)


def _from_half(value: Any, semantic: Any) -> Any:
    raw = semantic.bitcast(value, core.uint16)
    magnitude = semantic.and_(raw, 0x7FFF)
    fits = semantic.less_than(magnitude, _LARGEST)
    magnitude = semantic.where(fits, magnitude, _LARGEST)
    rounded = semantic.lshr(semantic.add(magnitude, 0x40, False), 7)
    sign = semantic.lshr(semantic.and_(raw, 0x8000), 8)
    result = semantic.cast(semantic.or_(sign, rounded), core.uint8)
    return _named(result, core.float8e4b15)


def _named(value: Any, dtype: Any) -> Any:
    """Returns the value with another type, which is the same one in Triton's intermediate code."""
    return core.tensor(value.handle, value.type.with_element_ty(dtype))
