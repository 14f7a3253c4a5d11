"""Types of sparse tensors (COO), as those of ``torch.cuda.sparse``.

They are the sparse ones of the types in ``torch.openreg``: ``isinstance(x, FloatTensor)`` checks
device, dtype and layout, and ``FloatTensor(indices, values, sizes)`` creates a tensor.
"""

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

BFloat16Tensor = make_type("torch.openreg.sparse", "BFloat16Tensor")
ByteTensor = make_type("torch.openreg.sparse", "ByteTensor")
CharTensor = make_type("torch.openreg.sparse", "CharTensor")
DoubleTensor = make_type("torch.openreg.sparse", "DoubleTensor")
FloatTensor = make_type("torch.openreg.sparse", "FloatTensor")
HalfTensor = make_type("torch.openreg.sparse", "HalfTensor")
IntTensor = make_type("torch.openreg.sparse", "IntTensor")
LongTensor = make_type("torch.openreg.sparse", "LongTensor")
ShortTensor = make_type("torch.openreg.sparse", "ShortTensor")
