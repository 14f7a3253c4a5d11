"""Autograd on openreg gives the CPU's gradients: hooks, checkpoints, threads, several devices."""

from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_autograd import TestAutograd

__all__ = ["TARGET", "TestAutograd"]

if __name__ == "__main__":
    run_tests()
