"""Importing this module first makes the device fill memory that nobody owns, in this process.

A kernel that reads what nobody wrote then gets NaN instead of what the call before has left, and
one that writes there fails its test.
"""

import os

os.environ["OPENREG_MEMORY_POISON"] = "1"
# Each test ends with a comparison of what is in quarantine.
os.environ["OPENREG_MEMORY_QUARANTINE"] = "4MiB"

from openreg_target import TARGET

TARGET.is_poisoned = True
