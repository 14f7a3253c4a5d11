"""Lazy initialization, and its state in this process."""

import atexit
import builtins
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from torch_openreg import _C
from torch_openreg.openreg._utils import _named

__all__ = ["DeferredOpenRegCallError", "init", "is_initialized"]

# As error texts call the device.
_NAME = _C._device_name()

_was_initialized = False
_lock = threading.RLock()  # a queued call may call this function

# What waits for the initialization, each with the stack that queued it. _lock guards both.
_queued_calls: list[tuple[Callable[[], object], list[str]]] = []
_is_initializing = False

# Far longer than an idle autograd thread needs; one that hangs must not keep the process.
_AUTOGRAD_TIMEOUT_S = 2.0

# Far longer than small kernels need; work that is stuck must not keep the process.
_LATE_ERROR_TIMEOUT_MS = 2000


class DeferredOpenRegCallError(Exception):
    """A call that waited for the initialization has failed.

    The text contains the error and the stack that queued the call.
    """


def init() -> None:
    """Initializes the device module. Functions that need this call it themselves.

    Raises:
        RuntimeError: No device is available, or this process was forked from one that used a
        device.
        DeferredOpenRegCallError: A call that waited for the initialization has failed.
    """
    _lazy_init()


def is_initialized() -> bool:
    """Returns whether this process has initialized the module or used a device.

    False in a child that was forked from a process that used a device.
    """
    if _C._is_in_bad_fork() or not _C._are_settings_read():
        return False
    return _was_initialized or any(_C._is_device_active(i) for i in range(_C._get_device_count()))


# Whether this process was forked from one that had used a device: such a child cannot use devices.
# torch looks up this function by name.
_is_in_bad_fork = _C._is_in_bad_fork


def _check_fork() -> None:
    if _C._is_in_bad_fork():
        raise RuntimeError(
            f"Cannot re-initialize {_NAME} in forked subprocess. To use {_NAME} with "
            "multiprocessing, you must use the 'spawn' start method"
        )


# docs: lazy-init
def _lazy_init() -> None:
    """As ``init``. torch calls this by name before it creates the first tensor on the device."""
    global _was_initialized, _is_initializing
    _check_fork()
    if _was_initialized:
        return
    with _lock:
        # The second: a queued call uses the device.
        if _was_initialized or _is_initializing:
            return
        if _C._serves_cuda():
            # It calls _C._init(), then the calls that were queued there, mostly seeds.
            torch.cuda._lazy_init()
        else:
            _C._init()
        _is_initializing = True
        try:
            _run_queued_calls()
        finally:
            _is_initializing = False
        _was_initialized = True


# docs: end


def _lazy_call(callable: Callable[[], object], **kwargs: object) -> None:
    """Calls a function without arguments: now if the module is initialized, else when it will be.

    As ``torch.cuda._lazy_call``. Queued calls run in the order in which they were queued, on the
    thread that initializes the module, before anything else on the device. A failed call stays in
    the queue, with the later ones, for the next initialization. Where the device type is CUDA, the
    queue is that of ``torch.cuda``, whose initialization comes before the first tensor there.

    Args:
        callable: The function.
        kwargs: ``seed`` and ``seed_all``, by which torch.cuda lets a later call replace this one;
            here all calls run.
    """
    if not builtins.callable(callable):
        raise TypeError(
            f"{_named('torch.openreg._lazy_call')}: expected a function, got {callable!r}"
        )
    unknown = sorted(set(kwargs) - {"seed", "seed_all"})
    if unknown:
        raise TypeError(
            f"{_named('torch.openreg._lazy_call')}: expected seed or seed_all as keywords, got "
            f"{unknown[0]}"
        )
    if _C._serves_cuda():
        torch.cuda._lazy_call(callable, **kwargs)
        return
    with _lock:
        if not is_initialized():
            # Text: a traceback would keep the frames alive.
            _queued_calls.append((callable, traceback.format_stack()[:-1]))
            return
    callable()


def _run_queued_calls() -> None:
    while _queued_calls:
        call, stack = _queued_calls[0]
        try:
            call()
        except Exception as error:
            raise DeferredOpenRegCallError(
                f"A call queued for the initialization of {_NAME} failed: {error}\n\n"
                f"It was queued at:\n\n{''.join(stack)}"
            ) from error
        del _queued_calls[0]


def _has_autograd_threads() -> bool:
    for name in Path("/proc/self/task").glob("*/comm"):
        try:
            if name.read_text().startswith("pt_autograd"):
                return True
        except OSError:  # the thread has ended
            continue
    return False


# Functions of atexit run in reverse: this function runs after the next one, whose threads may
# launch.
@atexit.register
def _tell_late_error() -> None:
    """Prints a kernel's error that no call has raised, and has the process exit with status 1.

    An exit status other than 0 that the program has chosen stays. Without an error, the exit costs
    the time of the work that is left, up to a limit. Processes that end in other ways than by the
    end of their program, such as by os._exit, say nothing. Collectives are not reported either:
    those that no call waits for fail if the other rank ends first.
    """
    try:
        _C._device_take_error_all(_LATE_ERROR_TIMEOUT_MS, "the end of the program")
    except getattr(torch._C, "_DistBackendError", ()):
        pass
    except Exception as error:
        if sys.stderr is not None:
            print(
                "torch_openreg: a kernel has failed, and no call has raised its error:\n"
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )
        _C._fail_exit()


@atexit.register
def _finish_autograd() -> None:
    """Waits until torch's autograd threads have released finished backward passes.

    Such a thread holds Python objects for a moment after ``backward()`` returns. If it released
    them while the interpreter shuts down, it would abort the process.
    """
    if not is_initialized() or not _has_autograd_threads():
        return
    for index in range(_C._get_device_count()):
        if _C._is_device_active(index):
            _C._wait_for_autograd(index, _AUTOGRAD_TIMEOUT_S)
