"""The tests of this folder are programs for CUDA, in a process whose device type is CUDA."""

import os
import sys

import pytest

if os.environ.get("OPENREG_DEVICE_TYPE") != "cuda" and "torch" in sys.modules:
    raise pytest.UsageError(
        "test/cuda: expected a process that has not imported torch yet; run this folder by itself, "
        "or all tests by test/run.py"
    )
os.environ["OPENREG_DEVICE_TYPE"] = "cuda"
os.environ.setdefault("OPENREG_CUDA_NOTICE", "0")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
