"""Lazy initialization: what the process knows about its use of the device."""

import atexit
import threading
from pathlib import Path

from torch_openreg import _C

__all__ = ["init", "is_initialized"]

# As error texts call the device.
_NAME = "CUDA" if _C._serves_cuda() else "OpenReg"

_was_initialized = False
_lock = threading.Lock()

# Far longer than an idle autograd thread needs; one that hangs must not keep the process.
_AUTOGRAD_TIMEOUT_S = 2.0


def init() -> None:
    """Initializes the device module. Functions that need this call it themselves.

    Raises:
        RuntimeError: There is no device, or this process was forked from one that used a device.
    """
    _lazy_init()


def is_initialized() -> bool:
    """Returns whether this process has initialized the module or used a device.

    False in a child that was forked from a process that used a device.
    """
    if _C._is_in_bad_fork():
        return False
    return _was_initialized or any(_C._is_device_active(i) for i in range(_C._get_device_count()))


def _is_in_bad_fork() -> bool:
    """Returns whether this process was forked from one that had used a device.

    Such a child cannot use devices. torch looks this function up by name.
    """
    return _C._is_in_bad_fork()


def _check_fork() -> None:
    if _C._is_in_bad_fork():
        raise RuntimeError(
            f"Cannot re-initialize {_NAME} in forked subprocess. To use {_NAME} with "
            "multiprocessing, you must use the 'spawn' start method"
        )


# docs: lazy-init
def _lazy_init() -> None:
    """As ``init``. torch calls this by name before it creates the first tensor on the device."""
    global _was_initialized
    _check_fork()
    if _was_initialized:
        return
    with _lock:
        if not _was_initialized:
            _C._init()
            _was_initialized = True


# docs: end


def _has_autograd_threads() -> bool:
    for name in Path("/proc/self/task").glob("*/comm"):
        try:
            if name.read_text().startswith("pt_autograd"):
                return True
        except OSError:  # the thread has ended
            continue
    return False


@atexit.register
def _finish_autograd() -> None:
    """Waits until torch's autograd threads have released finished backward passes.

    Such a thread holds Python objects for a moment after ``backward()`` returns. If it released
    them while the interpreter shuts down, it would abort the process.
    """
    if _C._is_in_bad_fork() or not _has_autograd_threads():
        return
    for index in range(_C._get_device_count()):
        if _C._is_device_active(index):
            _C._wait_for_autograd(index, _AUTOGRAD_TIMEOUT_S)
