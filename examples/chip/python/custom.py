"""Step 8 of docs/bring_up.md: an operator of one's own, whose kernel is in Squares.cpp.

In full: csrc/extras/custom/.
"""

from typing import Any

import torch
from torch import Tensor


# docs: chip-custom-python
@torch.library.register_fake("chip::squares")
def _(x: Tensor) -> Tensor:
    """Shape, dtype and strides of the result, for torch.compile."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_input(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, gradient: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return 2 * x * gradient


torch.library.register_autograd("chip::squares", _gradient, setup_context=_keep_input)
# docs: end
