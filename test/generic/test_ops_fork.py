"""Worker processes of a DataLoader call operators on the CPU while the parent uses the device.

The workers are forked from a process whose device is busy, and must not touch it.
"""

from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_fork import TestFork

__all__ = ["TARGET", "TestFork"]

if __name__ == "__main__":
    run_tests()
