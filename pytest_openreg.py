"""A plug-in for pytest: runs a test suite that is written for CUDA on the emulated device.

``pytest --openreg-cuda``, or ``openreg_cuda = true`` in pytest's configuration file, has the tests'
processes serve device type ``cuda`` from :mod:`torch_openreg`. Without one of them the plug-in does
nothing. It is a module outside of the package, as importing the package imports torch.

``pytest --openreg-sanitizer`` runs each test under ``torch.openreg.sanitizer``, on either device
type: a test with findings fails, with the reports in a section of their own.
``--openreg-sanitizer=race,lifetime`` finds these kinds only.

Offers:

- the fixture ``cuda_gate``: a :class:`torch_openreg.testing.StreamGate`;
- the marker ``needs_real_cuda``, which skips a test on the emulated device;
- the marker ``openreg_sanitizer(allow=["race"], expect="lifetime")``: kinds that a test may have,
  and one that it must have.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Generator
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
    "pytest_runtest_call",
]

_VARIABLE = "OPENREG_DEVICE_TYPE"
_MARKER = "needs_real_cuda: skip this test where torch_openreg emulates CUDA"
_SANITIZER_MARKER = (
    "openreg_sanitizer(allow, expect): with --openreg-sanitizer, kinds of findings that the test "
    "may have, and one that it must have"
)
_KINDS = ("race", "lifetime", "host", "graph-input")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option and its twin for the configuration file."""
    text = "serve device type cuda from torch_openreg, on the CPU"
    group = parser.getgroup("openreg", "torch_openreg")
    group.addoption("--openreg-cuda", action="store_true", default=None, help=text)
    group.addoption(
        "--openreg-sanitizer",
        nargs="?",
        const=",".join(_KINDS),
        type=_kinds,
        metavar="KINDS",
        help="find streams that race; of the kinds named, all by default: " + ",".join(_KINDS),
    )
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
    config.addinivalue_line("markers", _SANITIZER_MARKER)


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Runs the test under the sanitizer, if asked to."""
    kinds = item.config.getoption("--openreg-sanitizer")
    if not kinds:
        return (yield)
    import torch

    from torch_openreg.openreg import sanitizer

    sanitizer.clear()
    options = {kind: kind in kinds for kind in ("race", "lifetime", "host")}
    with sanitizer.check("collect", **options):
        result = yield
        gc.collect()
        torch.accelerator.synchronize()
    found = [one for one in sanitizer.findings() if one.kind in kinds]
    sanitizer.clear()
    marker = item.get_closest_marker("openreg_sanitizer")
    arguments = marker.kwargs if marker else {}
    expected = arguments.get("expect")
    refused = [one for one in found if one.kind not in {*arguments.get("allow", ()), expected}]
    if refused:
        item.add_report_section("call", "openreg sanitizer", "\n\n".join(map(str, refused)))
        pytest.fail(f"the sanitizer has {len(refused)} findings", pytrace=False)
    if expected is not None and not any(one.kind == expected for one in found):
        pytest.fail(f"the sanitizer was expected to find {expected!r}, and did not", pytrace=False)
    return result


def _kinds(text: str) -> frozenset[str]:
    kinds = frozenset(text.split(","))
    if not kinds <= set(_KINDS):
        raise argparse.ArgumentTypeError(
            f"expected kinds of {', '.join(_KINDS)} behind =, got {text!r}; without kinds, the "
            "option comes after the files"
        )
    return kinds


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
