"""A call with another number, or other contents, after calls with the same metadata.

The operator has learned from the calls before, and must do for the last one what it would have done
for the first: give the CPU's result, or raise the CPU's error in the call.
"""

from poison import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_mutations import TestMutations

__all__ = ["TARGET", "TestMutations"]

if __name__ == "__main__":
    run_tests()
