"""A call with another number, or other contents, after calls with the same metadata.

State that the operator has cached from the calls before must not affect the last one: it has to
give the CPU's result, or raise the CPU's error at the call.
"""

import pytest
from poison import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_mutations import TestMutations

pytestmark = pytest.mark.sample(0.03)

__all__ = ["TARGET", "TestMutations"]

if __name__ == "__main__":
    run_tests()
