"""Known differences of the device type CUDA; see cuda_differences.py.

Imports no torch: the folder test/cuda sets the device type first.
"""

import os

import pytest
from cuda_differences import DIFFERENCES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the list as expected to fail."""
    if os.environ.get("OPENREG_DEVICE_TYPE") != "cuda":
        return
    for item in items:
        reason = DIFFERENCES.get(item.nodeid.removeprefix("test/"))
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
