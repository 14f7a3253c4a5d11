"""Steps 2 to 5 of docs/bring_up.md: the module torch.NAME. In full: torch_openreg/openreg/.

``torch.accelerator`` has streams, events, memory and the rest under names for every device.
``fallback_stats`` and ``fallback_copied_bytes`` are what ``openreg_bringup`` prints: operators that
ran on the CPU.
"""

import atexit
from contextlib import AbstractContextManager

import torch

from . import _C
from .random import get_rng_state, manual_seed, manual_seed_all, set_rng_state  # noqa: F401

current_device = torch.accelerator.current_device_index
device_count = _C._get_device_count  # which torch.accelerator.device_count calls
set_device = torch.accelerator.set_device_index
fallback_stats = _C._fallback_stats
fallback_copied_bytes = _C._fallback_copied_bytes
synchronize = torch.accelerator.synchronize
_is_in_bad_fork = _C._isInBadFork
_initialized = False  # torch.utils.checkpoint keeps the random numbers of a device that has this


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether this process has used a device, and still can."""
    return _initialized and not _is_in_bad_fork()


def device(device: torch.device | str | int) -> AbstractContextManager[object]:
    """Makes a device current while a block runs."""
    return torch.accelerator.device_index(torch.device(device).index)


def _lazy_init() -> None:
    """Prepares the process. torch calls this by name before it makes the first tensor."""
    global _initialized
    if _is_in_bad_fork():
        raise RuntimeError(f"Cannot re-initialize {_C.NAME} in forked subprocess; use 'spawn'")
    _C._init()
    _initialized = True


# docs: minimal-exit
@atexit.register
def _finish_autograd() -> None:
    """Waits until the autograd threads have released what they held for ``backward``.

    Such a thread may still hold a Python object when ``backward`` has returned. If it released the
    object while the interpreter ends, it would abort the process.
    """
    if is_initialized():
        _C._finish_autograd()


# docs: end
