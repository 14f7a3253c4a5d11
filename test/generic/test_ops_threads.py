"""Two threads with separate streams that call one operator concurrently get the CPU's results."""

import pytest
from openreg_target import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_threads import TestThreads

pytestmark = pytest.mark.sample(0.085)

__all__ = ["TARGET", "TestThreads"]

if __name__ == "__main__":
    run_tests()
