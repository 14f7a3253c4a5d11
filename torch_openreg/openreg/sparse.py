"""Types of sparse tensors (COO), as those of ``torch.cuda.sparse``.

They are the sparse ones of the types in ``torch.openreg``: ``isinstance(x, FloatTensor)`` checks
device, dtype and layout, and ``FloatTensor(indices, values, sizes)`` creates a tensor.
"""

from torch_openreg.openreg._utils import MODULE_NAME
from torch_openreg.openreg.tensor_types import make_type

__all__ = [
    "BFloat16Tensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]

_MODULE = f"{MODULE_NAME}.sparse"

BFloat16Tensor = make_type(_MODULE, "BFloat16Tensor")
ByteTensor = make_type(_MODULE, "ByteTensor")
CharTensor = make_type(_MODULE, "CharTensor")
DoubleTensor = make_type(_MODULE, "DoubleTensor")
FloatTensor = make_type(_MODULE, "FloatTensor")
HalfTensor = make_type(_MODULE, "HalfTensor")
IntTensor = make_type(_MODULE, "IntTensor")
LongTensor = make_type(_MODULE, "LongTensor")
ShortTensor = make_type(_MODULE, "ShortTensor")
