"""``torch.cuda.FloatTensor`` and its kin, and ``torch.set_default_tensor_type`` for them."""

from typing import Any

import torch

from torch_openreg.openreg import tensor_types
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["install"]

_set_default_tensor_type = torch.set_default_tensor_type


def _set_default(t: Any) -> None:
    """As ``torch.set_default_tensor_type``, which rejects the types of CUDA in this build."""
    kind: Any = _types().get(t, t) if isinstance(t, str) else t
    if isinstance(kind, tensor_types.TensorType):
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
            setattr(module, name, tensor_types.make_type(module.__name__, name))
    torch.set_default_tensor_type = _set_default
