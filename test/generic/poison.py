"""Importing this module first makes the device fill free and new memory, in this process.

A kernel that reads uninitialized memory then reads NaN instead of earlier contents, and a kernel
that writes to free memory fails its test.
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for a file that is run by its path

import environments

environments.set_before_torch("poison")

from openreg_target import TARGET  # noqa: E402

TARGET.is_poisoned = True
