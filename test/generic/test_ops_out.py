"""Every operator writes into every kind of out= what the CPU writes, or refuses it as the CPU does.

Memory that nobody wrote reads as NaN, so that an element that is left out shows.
"""

from poison import TARGET

# isort: split
from common import run_tests

from torch_openreg.conformance.test_ops_out import TestOut

__all__ = ["TARGET", "TestOut"]

if __name__ == "__main__":
    run_tests()
