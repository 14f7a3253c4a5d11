"""The gradients of every differentiable operator are the CPU's."""

import pytest
from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_backward import TestBackward

pytestmark = pytest.mark.sample(0.053)

__all__ = ["TARGET", "TestBackward"]

if __name__ == "__main__":
    run_tests()
