"""An error on the CPU is an error of the same type on openreg, raised by the call.

A good call with the same metadata comes before, if there is one: what was learned from it must not
hide the error. Errors that kernels find in their data may come later, as on CUDA.
"""

import pytest
from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_op_errors import TestErrors

pytestmark = pytest.mark.sample(0.3)

__all__ = ["TARGET", "TestErrors"]

if __name__ == "__main__":
    run_tests()
