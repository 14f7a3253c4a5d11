"""Attention of distributed tensors.

torch shards CUDA's algorithms by heads or by the batch, and has no strategies for other backends.
This device's algorithm is sharded in the same ways.
"""

from typing import Any, TypeAlias

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

__all__ = ["install"]

aten = torch.ops.aten

# Of the outputs and of the arguments; None for values that are not tensors.
_Placements: TypeAlias = list[Placement | None]
_Sharding: TypeAlias = tuple[_Placements, _Placements]

_BATCH, _HEADS = 0, 1


def _dimensions(query: Any, key: Any) -> list[int | None]:
    """Returns the dimensions to shard, None for none.

    A group of heads that has one key stays together: shards of the keys have to be those of the
    groups.
    """
    if query.shape[_HEADS] != key.shape[_HEADS] and key.shape[_HEADS] % query.mesh.size() != 0:
        return [None, _BATCH]
    return [None, _BATCH, _HEADS]


def _placed(dim: int | None) -> Placement:
    return Replicate() if dim is None else Shard(dim)


def _place_bias(bias: Any, dim: int | None) -> Placement | None:
    """Returns where a bias is, which may be the same for all heads or for the whole batch."""
    if bias is None:
        return None
    is_shared = dim is None or bias.ndim < 4 or bias.shape[dim] == 1
    return _placed(None if is_shared else dim)


def _share_forward(
    query: Any, key: Any, value: Any, bias: Any = None, *numbers: Any, **_: Any
) -> list[_Sharding]:
    """Returns the ways of sharing _scaled_dot_product_fused_attention_overrideable."""
    shardings: list[_Sharding] = []
    for dim in _dimensions(query, key):
        own, rest = _placed(dim), Replicate()
        # The output and logsumexp; the others are empty, but for two lengths.
        outputs = [own, own, rest, rest, None, None, rest, rest, rest]
        inputs = [own, own, own, _place_bias(bias, dim), *(None for _ in numbers)]
        shardings.append((outputs, inputs))
    return shardings


def _share_backward(
    grad: Any, query: Any, key: Any, value: Any, bias: Any, *arguments: Any, **_: Any
) -> list[_Sharding]:
    """Returns the ways of sharing the backward of it."""
    shardings: list[_Sharding] = []
    for dim in _dimensions(query, key):
        own, rest = _placed(dim), Replicate()
        bias_placed = _place_bias(bias, dim)
        is_summed = dim is not None and isinstance(bias_placed, Replicate)
        grad_bias = Partial() if is_summed else bias_placed
        # The output and logsumexp, which are sharded, come first among the rest.
        tensors = iter([own, own])
        placed = [
            next(tensors, rest) if hasattr(argument, "placements") else None
            for argument in arguments
        ]
        shardings.append(([own, own, own, grad_bias], [own, own, own, own, bias_placed, *placed]))
    return shardings


def install() -> None:
    """Has distributed tensors share attention."""
    operator = aten._scaled_dot_product_fused_attention_overrideable
    register_sharding(operator.default)(_share_forward)
    backward = aten._scaled_dot_product_fused_attention_overrideable_backward
    register_sharding(backward.default)(_share_backward)
