"""``torch.cuda.FloatTensor`` and its kin, and ``torch.set_default_tensor_type`` for them."""

import warnings
from typing import Any

import torch

from torch_openreg.openreg import tensor_types
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["install"]

_set_default_tensor_type = torch.set_default_tensor_type
_DEPRECATED_DEFAULT = (
    "torch.set_default_tensor_type() is deprecated as of PyTorch 2.1, please use "
    "torch.set_default_dtype() and torch.set_default_device() as alternatives."
)
_DEPRECATED_TYPE = (
    "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use methods "
    "such as torch.tensor(data, dtype=*, device='cuda') to create tensors."
)
_given: set[str] = set()  # warnings


def _warn_once(text: str) -> None:
    """As TORCH_WARN_ONCE, for the caller of the caller."""
    if text not in _given or torch.is_warn_always_enabled():
        _given.add(text)
        warnings.warn(text, stacklevel=3)


class _CudaType(tensor_types.TensorType):
    """A type whose constructor is deprecated, as on CUDA."""

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        _warn_once(_DEPRECATED_TYPE)
        return super().__call__(*args, **kwargs)


def _set_default(t: Any) -> None:
    """As ``torch.set_default_tensor_type``, which rejects the types of CUDA in this build."""
    kind: Any = _types().get(t, t) if isinstance(t, str) else t
    if isinstance(kind, tensor_types.TensorType):
        _warn_once(_DEPRECATED_DEFAULT)
        torch.set_default_dtype(kind.dtype)
        torch.set_default_device(DEVICE_TYPE)
        return
    if torch.get_default_device().type == DEVICE_TYPE:
        torch.set_default_device(None)
    _set_default_tensor_type(kind)


def _types() -> dict[str, tensor_types.TensorType]:
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in (torch.cuda, torch.cuda.sparse)
        for name in tensor_types.__all__
    }


def install() -> None:
    """Puts the types in the place of those that only say what torch was not compiled with."""
    for module in (torch.cuda, torch.cuda.sparse):
        for name in tensor_types.__all__:
            kind = tensor_types.make_type(module.__name__, name, _CudaType)
            setattr(module, name, kind)
            torch._tensor_classes.add(kind)  # type: ignore[arg-type]
    torch.set_default_tensor_type = _set_default
