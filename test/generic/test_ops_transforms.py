"""Every operator under function transforms gives the CPU's results.

Transforms show an operator other tensors than programs do: batched ones, tensors of zeros without
memory, tangents, and gradients that are differentiated again.
"""

import pytest
from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_transforms import TestTransforms

pytestmark = pytest.mark.sample(0.053)

__all__ = ["TARGET", "TestTransforms"]

if __name__ == "__main__":
    run_tests()
