"""Errors that CUDA, too, raises when the program waits for the device, and not in the call.

A kernel finds them in its data: on CUDA, they are device-side assertions or are not checked. Errors
that CUDA's host code detects are not among them.
"""

import re
from dataclasses import dataclass

__all__ = ["LATE_ERRORS", "LateError", "is_late_on_cuda"]


@dataclass(frozen=True)
class LateError:
    """An error of kernels.

    Attributes:
        pattern: a regular expression that the CPU's message has.
        reason: what CUDA's kernel asserts.
    """

    pattern: str
    reason: str


LATE_ERRORS = [
    LateError(
        r"index .*out of (range|bounds)|INDICES element is out of DATA bounds|"
        r"out of range: tried to access index|Index -?\d+ of input takes value|"
        r"Expected i < index_size|embedding_bag: Expected idx >= 0",
        "indices are within the dimension",
    ),
    LateError(
        r"Target -?\d+ is out of bounds|target out of range|'target' is out of range|"
        r"Class values must be",
        "targets are classes",
    ),
    LateError(r"Found an invalid max index", "indices of max_unpool are within the output"),
    LateError(
        r"pivots passed to lu_unpack must be|Pivots given to lu_solve must",
        "pivots are rows",
    ),
    LateError(
        r"allocated size does not match required size",
        "output_size of repeat_interleave is the sum of the repeats",
    ),
    LateError(r"segment_length >= 0", "offsets do not decrease"),
    LateError(
        r"offsets\[0\] has to be 0|the last offset value should be the size",
        "nothing: CUDA does not look at offsets",
    ),
    LateError(r"ZeroDivisionError", "nothing: an integer divided by zero is undefined on CUDA"),
    LateError(r"all elements of (input|target) should be between 0 and 1", "probabilities"),
    LateError(r"Expected p_in >= 0 && p_in <= 1", "probabilities of bernoulli"),
    LateError(r"invalid multinomial distribution", "probabilities that are drawn from repeatedly"),
    LateError(r"normal expects all elements of std >= 0", "deviations in a tensor"),
    LateError(
        r"Expected to - from <= std::numeric_limits",
        "nothing: CUDA does not look at the bounds of rrelu, which the CPU checks for the first "
        "element that is not positive",
    ),
]


def is_late_on_cuda(message: str) -> bool:
    """Whether an error with this text may come when the device is waited for."""
    return any(re.search(one.pattern, message, re.IGNORECASE) for one in LATE_ERRORS)
