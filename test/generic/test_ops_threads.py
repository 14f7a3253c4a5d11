"""Two threads with streams of their own that call one operator at a time get the CPU's results."""

from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_threads import TestThreads

__all__ = ["TARGET", "TestThreads"]

if __name__ == "__main__":
    run_tests()
