"""Ends the run at its start if torch has not found the device under test."""

import pytest


def pytest_sessionstart() -> None:
    try:
        import common  # noqa: F401  (its import checks)
    except RuntimeError as error:
        raise pytest.UsageError(str(error)) from None
