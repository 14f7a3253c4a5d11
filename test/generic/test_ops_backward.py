"""The gradients of every differentiable operator are the CPU's."""

from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_backward import TestBackward

__all__ = ["TARGET", "TestBackward"]

if __name__ == "__main__":
    run_tests()
