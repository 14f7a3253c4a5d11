"""Step 5 of docs/bring_up.md: random numbers. In full: torch_openreg/openreg/random.py.

A seed passes six layers: ``manual_seed``; ``_C._get_default_generator``; ATen's
``globalContext().defaultGenerator(device)``; the hooks' ``getDefaultGenerator``; the function of
that name in ``Generator.h``; the ``GeneratorImpl``.
"""

import torch

from . import _C


def _generator(device: torch.device | str | int | None = None) -> torch.Generator:
    """The default generator of a device; of the current one without an index."""
    index = device if isinstance(device, int) else torch.device(device or _C.NAME).index
    return _C._get_default_generator(-1 if index is None else index)  # -1: of the current device


def manual_seed(seed: int) -> None:
    """Sets the seed of the current device."""
    _generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Sets the seed of all devices; ``torch.manual_seed`` calls it."""
    for index in range(_C._get_device_count()):
        _generator(index).manual_seed(seed)


def get_rng_state(device: torch.device | str | int | None = None) -> torch.Tensor:
    """The state of a device's generator, which decides its next numbers."""
    return _generator(device).get_state()


def set_rng_state(state: torch.Tensor, device: torch.device | str | int | None = None) -> None:
    """Sets what ``get_rng_state`` has returned."""
    _generator(device).set_state(state)
