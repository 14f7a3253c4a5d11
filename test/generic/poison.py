"""Importing this module first makes the device fill free and new memory, in this process.

A kernel that reads uninitialized memory then reads NaN instead of earlier contents, and a kernel
that writes to free memory fails its test.
"""

import os

os.environ["OPENREG_MEMORY_POISON"] = "1"
# Each test ends with a check of the memory in quarantine.
os.environ["OPENREG_MEMORY_QUARANTINE"] = "4MiB"

from openreg_target import TARGET

TARGET.is_poisoned = True
