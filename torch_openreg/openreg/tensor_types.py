"""The tensor types of torch's first releases, as ``torch.cuda.FloatTensor`` and its kin are.

torch makes those of the CPU and of CUDA in C++, and offers no way to make more. A type is not a
class of tensors: ``type(x)`` is :class:`torch.Tensor` for all of them. ``isinstance`` checks
device, dtype and layout, and a call creates a tensor with the old conventions:
``torch.openreg.FloatTensor(2, 3)`` is an uninitialized tensor of two rows,
``torch.openreg.FloatTensor([2, 3])`` one of two values.
"""

from typing import Any

import torch

from torch_openreg.openreg._utils import DEVICE_TYPE, MODULE_NAME

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]

_DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class TensorType(type):
    """The type of the types, as ``torch.tensortype`` is."""

    dtype: torch.dtype
    layout: torch.layout

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return cls.__qualname__

    @property
    def is_cuda(cls) -> bool:
        return DEVICE_TYPE == "cuda"

    @property
    def is_sparse(cls) -> bool:
        return cls.layout is torch.sparse_coo

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Makes a tensor on the current device.

        Args:
            args: sizes; one sequence of values; one tensor or storage of this type; for a sparse
                type, indices and values, and the sizes after them.
            kwargs: ``device``, one of this type.

        Raises:
            TypeError: an argument is none of these.
            RuntimeError: ``device`` is of another kind.
        """
        sizes = (0, 0) if cls.is_sparse else (0,)
        kind = torch.empty(sizes, dtype=cls.dtype, layout=cls.layout, device=DEVICE_TYPE)
        return kind.new(*args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.device.type == DEVICE_TYPE
            and value.dtype == cls.dtype
            and value.layout == cls.layout
        )


class _NoBase:
    """Forbids to derive from a type, as torch does."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if isinstance(cls.__base__, TensorType):
            raise TypeError(
                f"type '{cls.__base__.__module__}.{cls.__base__.__name__}' is not an acceptable "
                "base type"
            )


def _text_of(dtype: torch.dtype, is_sparse: bool) -> str:
    layout = "sparse (COO)" if is_sparse else "dense"
    arguments = "indices, values and sizes" if is_sparse else "sizes, or one sequence of values"
    return (
        f"Tensors on {DEVICE_TYPE} that are {layout} and have the dtype {dtype}.\n\n"
        "``isinstance(x, ...)`` tells whether a tensor is one. A call makes one on the current "
        f"device, of\n{arguments}. It is no class: ``type(x)`` is torch.Tensor.\n"
    )


def make_type(module: str, name: str, kind: type[TensorType] = TensorType) -> TensorType:
    """Makes the type of one name, dense or, in a module called ``sparse``, sparse.

    Args:
        module: That of the type.
        name: One of ``__all__``.
        kind: The type of the type.
    """
    # The text that Tensor.type() accepts is the full name given here; the short name is that of
    # TensorType.
    return kind(
        f"{module}.{name}",
        (_NoBase,),
        {
            "__doc__": _text_of(_DTYPES[name], module.endswith(".sparse")),
            "__module__": module,
            "__qualname__": name,
            "dtype": _DTYPES[name],
            "layout": torch.sparse_coo if module.endswith(".sparse") else torch.strided,
        },
    )


BFloat16Tensor = make_type(MODULE_NAME, "BFloat16Tensor")
BoolTensor = make_type(MODULE_NAME, "BoolTensor")
ByteTensor = make_type(MODULE_NAME, "ByteTensor")
CharTensor = make_type(MODULE_NAME, "CharTensor")
DoubleTensor = make_type(MODULE_NAME, "DoubleTensor")
FloatTensor = make_type(MODULE_NAME, "FloatTensor")
HalfTensor = make_type(MODULE_NAME, "HalfTensor")
IntTensor = make_type(MODULE_NAME, "IntTensor")
LongTensor = make_type(MODULE_NAME, "LongTensor")
ShortTensor = make_type(MODULE_NAME, "ShortTensor")
