"""The operators on lists of tensors give the CPU's results and gradients, in every layout."""

import pytest
from poison import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_foreach import TestForeach, TestSeveralDevices

pytestmark = pytest.mark.sample(0.06)

__all__ = ["TARGET", "TestForeach", "TestSeveralDevices"]

if __name__ == "__main__":
    run_tests()
