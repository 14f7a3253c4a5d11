"""Keeps this project's tests out of another project's run, if the clone is in its folder.

A bare ``pytest`` there would collect them, and they need this project's configuration. A run that
names the clone, a path in it, or the conformance kit is left alone.
"""

from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Ignores what is in the clone, in a run that is not about it."""
    return None if config.rootpath == _ROOT or _is_named(config) else True


def _is_named(config: pytest.Config) -> bool:
    for argument in config.args:
        if argument.startswith("torch_openreg"):
            return True
        path = (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        if path == _ROOT or _ROOT in path.parents:
            return True
    return False
