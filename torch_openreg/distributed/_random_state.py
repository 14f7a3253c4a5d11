"""Random operators of distributed tensors.

torch moves the offset of a Philox generator: each shard draws from a different offset, and all
ranks continue from an offset after all shards. Where the device type is CUDA, the generators here
have offsets, too. With the device type openreg they have none: their state is that of the CPU's
Mersenne Twister, and an offset selects a state that is derived from it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import _random

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
        self._base = None if self._state.numel() == _PHILOX_BYTES else self._state
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
    generator.set_state(state)
    drawn = int(torch.randint(1 << 62, (), generator=generator))
    mixed = ((drawn ^ offset) * _MULTIPLIER) & (2**64 - 1)
    # The engine's seed has 32 bits: the upper ones of a product depend on all bits of its factors.
    return generator.manual_seed(mixed >> 32).get_state()


# docs: end


def install() -> None:
    """Has distributed tensors draw from our generators."""
    setattr(_random, "_PhiloxState", _GeneratorState)  # noqa: B010
