"""Which of a file's tests run, and known differences of the device type CUDA.

The option --openreg-part, which test/run.py passes, chooses a part of each file; see parts.py.
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
from parts import PARTS, Test, part_of, shares, value_name

_FOLDER = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of a part."""
    group = parser.getgroup("openreg-tests", "the tests of torch_openreg")
    group.addoption(
        "--openreg-part",
        choices=PARTS,
        help="the part of each file that test/run.py runs, or the rest of it; see test/parts.py",
    )
    group.addoption(
        "--openreg-part-counts",
        metavar="FOLDER",
        help="write for each file how many tests it has, and how many of them are left out",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the known differences as expected to fail, and deselects tests of other parts."""
    if os.environ.get("OPENREG_DEVICE_TYPE") == "cuda":
        for item in items:
            reason = _cuda_difference(item)
            if reason is not None:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    part = config.getoption("--openreg-part")
    if part is not None:
        _choose(config, items, part)


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


def _choose(config: pytest.Config, items: list[pytest.Item], part: str) -> None:
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(_file_of(item), []).append(item)
    counts = {}
    chosen: set[pytest.Item] = set()
    for file, of_file in by_file.items():
        kept = of_part(file, of_file, part)
        counts[file] = {"tests": len(of_file), "left_out": len(of_file) - len(kept)}
        chosen.update(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
    folder = config.getoption("--openreg-part-counts")
    if folder:
        for file, count in counts.items():
            path = Path(folder) / f"{file.replace('/', '.')}.json"
            path.write_text(json.dumps({"file": file} | count), encoding="utf-8")


def of_part(file: str, items: list[pytest.Item], part: str) -> list[pytest.Item]:
    """Returns the tests that a part of a file has, in their order."""
    tests = [_test_of(item) for item in items]
    try:
        names = part_of(tests, shares().get(file), part)
    except ValueError as error:
        raise pytest.UsageError(f"{file}: {error}") from None
    return [item for item, test in zip(items, tests, strict=True) if test.name in names]


def _test_of(item: pytest.Item) -> Test:
    function = getattr(item, "function", None)
    generic_name = getattr(function, "__name__", item.name)
    class_name = _name_of(item).rpartition("::")[0]
    parameters = _parameters_of(item)
    group = f"{class_name}::{generic_name}" if parameters else class_name
    names = {name: value_name(value) for name, value in parameters.items()}
    return Test(
        _name_of(item),
        group,
        {name: value for name, value in names.items() if value is not None},
        _cuda_difference(item) is not None or _is_about_a_gap(parameters),
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
