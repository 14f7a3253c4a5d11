"""Errors that CUDA, too, raises when the device is waited for, and not in the call.

Each is found by the kernel in its data: a device-side assertion. An error that any code on the host
could see is not among them.
"""

import re
from dataclasses import dataclass

__all__ = ["LATE_ERRORS", "LateError", "is_late_on_cuda"]


@dataclass(frozen=True)
class LateError:
    """An error of kernels.

    Attributes:
        pattern: a regular expression that the CPU's message has.
        reason: what the kernel asserts.
    """

    pattern: str
    reason: str


LATE_ERRORS = [
    LateError(r"index .*out of (range|bounds)", "elements of indices are within the dimension"),
    LateError(r"segment_length >= 0", "offsets do not decrease"),
    LateError(r"offsets\[0\] has to be 0", "CUDA does not look, and the CPU reads the offsets"),
    LateError(r"all elements of (input|target) should be between 0 and 1", "probabilities"),
]


def is_late_on_cuda(message: str) -> bool:
    return any(re.search(one.pattern, message, re.IGNORECASE) for one in LATE_ERRORS)
