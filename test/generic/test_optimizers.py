"""Ten steps of every optimizer, in every configuration, give the CPU's parameters and state."""

import pytest
from poison import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_optimizers import TestOptimizers

pytestmark = pytest.mark.sample(0.053)

__all__ = ["TARGET", "TestOptimizers"]

if __name__ == "__main__":
    run_tests()
