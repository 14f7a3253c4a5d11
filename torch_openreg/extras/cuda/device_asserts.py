"""Device-side asserts: errors of kernels after which a GPU cannot be used, and these devices can.

A program that goes on after one is told so at its end; in a test run, pytest counts them.
"""

import atexit
import sys

import torch

from torch_openreg import _C

__all__ = ["install"]

_ASSERT = 710  # cudaErrorAssert


def _is_assert(error: object) -> bool:
    return isinstance(error, torch.AcceleratorError) and getattr(error, "error_code", 0) == _ASSERT


def _tell() -> None:
    """Prints how many errors the program has met, besides one that has ended it."""
    if _C._is_in_bad_fork():
        return
    count = _C._take_assert_count() - _is_assert(getattr(sys, "last_value", None))
    if count > 0 and sys.stderr is not None:
        asserts = "1 device-side assert" if count == 1 else f"{count} device-side asserts"
        print(
            f"torch_openreg: the program met {asserts}: on a GPU each later call of the process "
            "that needs the device fails",
            file=sys.stderr,
            flush=True,
        )


def install() -> None:
    """Registers what is called at the end of the program."""
    atexit.register(_tell)
