"""A plug-in for pytest: runs a test suite that is written for CUDA on the emulated device.

``pytest --openreg-cuda``, or ``openreg_cuda = true`` in pytest's configuration file, has the tests'
processes serve device type ``cuda`` from :mod:`torch_openreg`. Without one of them the plug-in does
nothing. It is a module outside of the package, as importing the package imports torch.

Offers:

- the fixture ``cuda_gate``: a :class:`torch_openreg.testing.StreamGate`;
- the marker ``needs_real_cuda``, which skips a test on the emulated device.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from torch_openreg.testing import StreamGate

__all__ = [
    "cuda_gate",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_load_initial_conftests",
    "pytest_report_header",
]

_VARIABLE = "OPENREG_DEVICE_TYPE"
_MARKER = "needs_real_cuda: skip this test where torch_openreg emulates CUDA"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option and its twin for the configuration file."""
    text = "serve device type cuda from torch_openreg, on the CPU"
    group = parser.getgroup("openreg", "torch_openreg")
    group.addoption("--openreg-cuda", action="store_true", default=None, help=text)
    parser.addini("openreg_cuda", text, type="bool", default=False)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Chooses the device type before a conftest.py can import torch.

    Raises:
        pytest.UsageError: if torch was imported before.
    """
    if not _is_asked_for(early_config):
        return
    if os.environ.get(_VARIABLE) != "cuda" and "torch" in sys.modules:
        raise pytest.UsageError(
            "--openreg-cuda: expected a process that has not imported torch yet, but another "
            f"plug-in has; set {_VARIABLE}=cuda in the environment instead"
        )
    # Workers of pytest-xdist and the processes that tests start inherit it.
    os.environ[_VARIABLE] = "cuda"


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", _MARKER)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says so in the first lines."""
    return "device type cuda: emulated by torch_openreg" if _is_asked_for(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what needs a GPU."""
    if not _is_asked_for(config):
        return
    skip = pytest.mark.skip(reason="needs real CUDA; torch_openreg emulates it")
    for item in items:
        if item.get_closest_marker("needs_real_cuda") is not None:
            item.add_marker(skip)


@pytest.fixture
def cuda_gate() -> StreamGate:
    """A gate for the current stream: ``with cuda_gate as gate:`` holds it until ``gate.open()``."""
    import torch

    if not getattr(torch.cuda, "is_emulated", False):
        pytest.skip("cuda_gate: needs the device type cuda of torch_openreg: pytest --openreg-cuda")
    from torch_openreg.testing import StreamGate

    return StreamGate()


def _is_asked_for(config: pytest.Config) -> bool:
    option = getattr(config.known_args_namespace, "openreg_cuda", None)
    return cast(bool, config.getini("openreg_cuda")) if option is None else bool(option)
