"""Every operator gives the CPU's results and gradients for arguments in every layout.

Calls alternate between two layouts and two sets of values: state cached by one call must not affect
another. Uninitialized memory reads as NaN.
"""

import pytest
from poison import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_layouts import TestLayouts

pytestmark = pytest.mark.sample(0.037)

__all__ = ["TARGET", "TestLayouts"]

if __name__ == "__main__":
    run_tests()
