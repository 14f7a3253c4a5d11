"""The tests of this folder are programs for CUDA, in a process whose device type is CUDA."""

import os
import sys

import environments
import pytest

try:
    environments.set_before_torch("cuda.conftest")
except RuntimeError as error:
    raise pytest.UsageError(str(error)) from None
os.environ.setdefault("OPENREG_CUDA_NOTICE", "0")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
