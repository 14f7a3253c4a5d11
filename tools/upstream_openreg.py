"""Runs PyTorch's own tests of its OpenReg, unmodified, on this backend.

``python tools/upstream_openreg.py FOLDER [FILE ...]``

The folder is ``test/cpp_extensions/open_registration_extension/torch_openreg/tests`` of a checkout
of PyTorch; FILE names test files in it, all of them by default. The tests are PyTorch's and no part
of this repository; ``test_autograd.py`` needs psutil. Each file runs in a separate process; a test
that crashes or exceeds the time limit is one failure, and the following tests still run.

``upstream_openreg.toml`` lists the tests that fail for a known reason. The exit code is 1 if a test
fails that is not listed, if a listed test passes or does not exist, or if nothing ran. With FILE,
the part of the list that is about these files counts.
"""

import sys
from pathlib import Path

from upstream_suites import Suite, run_suite

__all__ = ["SUITE"]

SUITE = Suite(Path(__file__), __doc__, "with PyTorch's tests of OpenReg")

if __name__ == "__main__":
    sys.exit(run_suite(SUITE))
