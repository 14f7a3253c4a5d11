"""Every operator of torch's database gives the CPU's results."""

import pytest
from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_forward import TestForward

pytestmark = pytest.mark.sample(0.045)

__all__ = ["TARGET", "TestForward"]

if __name__ == "__main__":
    run_tests()
