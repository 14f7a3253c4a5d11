"""Which of a file's tests run, and known differences of the device type CUDA.

The option --openreg-sample, which test/run.py passes, chooses a sample of each file; see sample.py.
Without it, all tests run.

Imports no torch: the folder test/cuda sets the device type first.
"""

import json
import os
import sys
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cuda_differences import DIFFERENCES
from sample import Test, chosen, value_name

_FOLDER = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of a sample."""
    group = parser.getgroup("openreg-tests", "the tests of torch_openreg")
    group.addoption(
        "--openreg-sample",
        type=float,
        metavar="SCALE",
        help="run a sample of each file, its share times this number; see test/sample.py",
    )
    group.addoption(
        "--openreg-sample-counts",
        metavar="FOLDER",
        help="write for each file how many tests it has, and how many of them are left out",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers of samples."""
    for text in (
        "sample(share): the share of the file's tests that runs by default; see test/sample.py",
        "slow(*instances): does not run by default, or these of its instances; see test/sample.py",
    ):
        config.addinivalue_line("markers", text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the known differences as expected to fail, and deselects what is not in the sample."""
    if os.environ.get("OPENREG_DEVICE_TYPE") == "cuda":
        for item in items:
            reason = _cuda_difference(item)
            if reason is not None:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    scale = config.getoption("--openreg-sample")
    if scale is not None:
        _choose(config, items, scale)


def pytest_collection_finish() -> None:
    """Keeps torch's TestCase from importing Dynamo, which takes longer than most files' tests.

    It resets Dynamo's state around each test, and compares the test's name with lists of slow and
    disabled tests. If no test has imported Dynamo, there is no state; without lists, there is
    nothing to compare.
    """
    utilities = sys.modules.get("torch.testing._internal.common_utils")
    if utilities is None:
        return
    test_case = utilities.TestCase
    run_with_reset = test_case._run_custom

    def run(self: unittest.TestCase, result: unittest.TestResult | None = None) -> None:
        if "torch._dynamo" in sys.modules:
            run_with_reset(self, result)
        else:
            super(test_case, self).run(result)

    test_case._run_custom = run
    if not utilities.slow_tests_dict and not utilities.disabled_tests_dict:
        utilities.remove_device_and_dtype_suffixes = str


def _choose(config: pytest.Config, items: list[pytest.Item], scale: float) -> None:
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(_file_of(item), []).append(item)
    counts = {}
    kept: set[pytest.Item] = set()
    for file, of_file in by_file.items():
        marker = of_file[0].get_closest_marker("sample")
        some = sample_of(of_file, scale * (marker.args[0] if marker else 1))
        counts[file] = {"tests": len(of_file), "left_out": len(of_file) - len(some)}
        kept.update(some)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
    folder = config.getoption("--openreg-sample-counts")
    if folder:
        for file, count in counts.items():
            path = Path(folder) / f"{file.replace('/', '.')}.json"
            path.write_text(json.dumps({"file": file} | count), encoding="utf-8")


def sample_of(items: list[pytest.Item], share: float) -> list[pytest.Item]:
    """Returns the tests of a file that a sample has, in their order."""
    slow = _slow_tests(items)
    tests = [_test_of(item, item.nodeid in slow) for item in items]
    names = chosen(tests, share)
    return [item for item, test in zip(items, tests, strict=True) if test.name in names]


def _slow_tests(items: list[pytest.Item]) -> set[str]:
    """Returns the ids of the tests with the marker, of those that it names if it names some.

    Raises:
        pytest.UsageError: A marker names an instance that there is not.
    """
    slow: set[str] = set()
    named: set[tuple[str, str]] = set()
    found: set[tuple[str, str]] = set()
    for item in items:
        marker = item.get_closest_marker("slow")
        if marker is None:
            continue
        for end in marker.args or [""]:
            instance = (_generic_name(item), end)
            named.add(instance)
            if item.name.endswith(end):
                found.add(instance)
                slow.add(item.nodeid)
    if gone := sorted(named - found):
        names = ", ".join(f"{name}..{end}" for name, end in gone)
        raise pytest.UsageError(f"slow: expected ends of names of tests, got {names}")
    return slow


def _generic_name(item: pytest.Item) -> str:
    return getattr(getattr(item, "function", None), "__name__", item.name)


def _test_of(item: pytest.Item, is_slow: bool) -> Test:
    class_name = _name_of(item).rpartition("::")[0]
    parameters = _parameters_of(item)
    group = f"{class_name}::{_generic_name(item)}" if parameters else class_name
    names = {name: value_name(value) for name, value in parameters.items()}
    return Test(
        _name_of(item),
        group,
        {name: value for name, value in names.items() if value is not None},
        is_kept=_cuda_difference(item) is not None or _is_about_a_gap(parameters),
        is_slow=is_slow,
    )


def _parameters_of(item: pytest.Item) -> Mapping[str, Any]:
    """The parameters of a test that pytest or torch's parametrize has made."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None:
        return dict(callspec.params)
    defaults = getattr(getattr(item, "function", None), "__defaults__", None) or ()
    # torch gives its instances a parameter `param_kwargs`, with a default.
    return next((value for value in reversed(defaults) if isinstance(value, dict)), {})


def _is_about_a_gap(parameters: Mapping[str, Any]) -> bool:
    """Whether a sweep's test is about an operator or module with a gap that shows by default."""
    if "known_gaps" not in sys.modules:  # no sweep
        return False
    from known_gaps import names_of_gaps

    return any(
        getattr(value, attribute, None) in names_of_gaps()
        for value in parameters.values()
        for attribute in ("formatted_name", "name")
    )


def _cuda_difference(item: pytest.Item) -> str | None:
    if os.environ.get("OPENREG_DEVICE_TYPE") != "cuda":
        return None
    return DIFFERENCES.get(item.nodeid.removeprefix("test/"))


def _file_of(item: pytest.Item) -> str:
    path = item.path
    return (path.relative_to(_FOLDER) if path.is_relative_to(_FOLDER) else path).as_posix()


def _name_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2]
