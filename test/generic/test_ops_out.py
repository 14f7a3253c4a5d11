"""Every operator writes the CPU's results into every kind of out=, or raises the CPU's error.

Uninitialized memory reads as NaN, which exposes elements that a kernel does not write.
"""

import pytest
from poison import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_out import TestOut

pytestmark = pytest.mark.sample(0.053)

__all__ = ["TARGET", "TestOut"]

if __name__ == "__main__":
    run_tests()
