"""Tensors spread over devices: the functions of ``torch.cuda.comm``.

They are torch's own, which serve any kind of device: ``torch.nn.parallel.comm``.
"""

from torch.nn.parallel.comm import (
    broadcast,
    broadcast_coalesced,
    gather,
    reduce_add,
    reduce_add_coalesced,
    scatter,
)

__all__ = [
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
]
