"""The in-place form of every operator gives the CPU's results."""

from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_inplace import TestInplace

__all__ = ["TARGET", "TestInplace"]

if __name__ == "__main__":
    run_tests()
