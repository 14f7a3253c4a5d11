"""What an operator warns of on the CPU it warns of on openreg, in each call."""

import pytest
from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_warnings import TestWarnings

pytestmark = pytest.mark.sample(0.2)

__all__ = ["TARGET", "TestWarnings"]

if __name__ == "__main__":
    run_tests()
