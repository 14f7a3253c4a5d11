"""Every module of torch's database gives the CPU's results and gradients, in all layouts."""

import pytest
from poison import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_modules import TestModules

pytestmark = pytest.mark.sample(0.067)

__all__ = ["TARGET", "TestModules"]

if __name__ == "__main__":
    run_tests()
