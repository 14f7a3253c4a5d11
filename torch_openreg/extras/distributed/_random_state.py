"""Random operators of distributed tensors.

torch moves the offset of a Philox generator: each shard draws from a different offset, and all
ranks continue from an offset after all shards. The generators here have no such offsets: their
algorithm is the CPU's Mersenne Twister, which draws several numbers for an element, and an offset
selects a state that is derived from the generator's.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import _random

from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["install"]

_PhiloxState: Any = _random._PhiloxState
_PHILOX_BYTES = 16

# A prime of the hash function xxHash: numbers that follow each other, as offsets do, go far apart.
_MULTIPLIER = 0x9E3779B185EBCA87


class _GeneratorState(_PhiloxState):  # type: ignore[misc]
    """As torch's class, also for states that have no offset.

    The states that two offsets select have nothing in common, and those of one are the same on all
    ranks that begin with the same state.
    """

    _state: Tensor

    def __init__(self, state: Tensor) -> None:
        super().__init__(state)
        is_of_another = self._state.numel() == _PHILOX_BYTES and DEVICE_TYPE != "cuda"
        self._base = None if is_of_another else self._state
        self._offset = torch.zeros(1, dtype=torch.int64)

    @property
    def offset(self) -> Tensor:
        return _PhiloxState.offset.fget(self) if self._base is None else self._offset

    @offset.setter
    def offset(self, offset: Tensor) -> None:
        if self._base is None:
            _PhiloxState.offset.fset(self, offset)
            return
        self._offset = offset
        self._state = _select(self._base, int(offset))


# docs: distributed-random
def _select(state: Tensor, offset: int) -> Tensor:
    """Returns the state that belongs to an offset."""
    generator = torch.Generator()
    if state.numel() == _PHILOX_BYTES:  # the seed and what has been drawn since
        seed, count = state.view(torch.int64).tolist()
        generator.manual_seed(_mixed(seed, count))
    else:
        generator.set_state(state)
    seed = _mixed(int(torch.randint(1 << 62, (), generator=generator)), offset)
    if state.numel() == _PHILOX_BYTES:
        return torch.tensor([seed, 0]).view(torch.uint8)
    return generator.manual_seed(seed).get_state()


def _mixed(first: int, second: int) -> int:
    """A seed that depends on both numbers."""
    # The engine's seed has 32 bits: the upper ones of a product depend on all bits of its factors.
    return (((first ^ second) * _MULTIPLIER) & (2**64 - 1)) >> 32


# docs: end


def install() -> None:
    """Has distributed tensors draw from our generators."""
    setattr(_random, "_PhiloxState", _GeneratorState)  # noqa: B010
