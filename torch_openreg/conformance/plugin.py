"""The kit's plug-in for pytest: chooses the device, and reports by chapter.

``pytest_openreg`` registers it if a run is about the kit, and no other run sees its options.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from torch_openreg.conformance.chapters import CHAPTERS, chapter_of
from torch_openreg.conformance.report import Result, terminal_lines, to_html

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
]

_PACKAGE = Path(__file__).resolve().parent
# Properties of tests' reports, which JUnit's files and workers of pytest-xdist carry on.
_CHAPTER = "conformance_chapter"
_TEST = "conformance_test"
_CASES = "conformance_cases"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the kit's options."""
    group = parser.getgroup("conformance", "the conformance kit of torch_openreg")
    group.addoption("--device", metavar="NAME", help="the device to test, such as xpu or npu:1")
    group.addoption(
        "--conformance-tolerance",
        metavar="FACTOR",
        default="1",
        help="a multiple of torch.testing's tolerances (1), or 'exact' for the CPU's bits",
    )
    group.addoption(
        "--conformance-chapter",
        metavar="NAMES",
        help="these chapters only, separated by commas: "
        + ", ".join(chapter.name for chapter in CHAPTERS),
    )
    group.addoption(
        "--conformance-full",
        action="store_true",
        help="all samples of all dtypes, which takes hours",
    )
    group.addoption("--conformance-report", metavar="FILE", help="write the report as HTML")
    group.addoption(
        "--conformance-docs",
        metavar="URL",
        default="docs/",
        help="where the report's links to the documentation go",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the device.

    Raises:
        pytest.UsageError: There is no such device, or an option has a value that it cannot have.
    """
    name = config.getoption("--device")
    if not name:
        raise pytest.UsageError(
            "torch_openreg.conformance: expected --device=NAME, got none; NAME is a device type of "
            "torch, such as cuda, xpu or the name of your backend"
        )
    _chapters(config)
    if config.getoption("--conformance-full"):
        os.environ["OPENREG_TEST_FULL"] = "1"
    import torch

    from torch_openreg.conformance.comparison import EXACT, Tolerance
    from torch_openreg.conformance.target import Target, set_target

    text = config.getoption("--conformance-tolerance")
    try:
        tolerance = EXACT if text == "exact" else Tolerance(float(text))
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, ValueError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n")[0]
        raise pytest.UsageError(
            f"torch_openreg.conformance: expected a device that holds a tensor, got {name!r}: "
            f"{reason}"
        ) from error
    set_target(Target(device, tolerance))
    config.pluginmanager.register(_Report(config), "conformance-report")


def pytest_report_header(config: pytest.Config) -> str:
    """Says what is tested."""
    return ", ".join(f"{name}: {value}" for name, value in _facts(config).items())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the chapters that were not asked for."""
    names = _chapters(config)
    if not names:
        return
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (chosen if _chapter_of(item) in names else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def _chapters(config: pytest.Config) -> frozenset[str]:
    text = config.getoption("--conformance-chapter") or ""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    known = {chapter.name for chapter in CHAPTERS}
    if not names <= known:
        raise pytest.UsageError(
            f"--conformance-chapter: expected names out of {', '.join(sorted(known))}, got {text!r}"
        )
    return names


def _chapter_of(item: pytest.Item) -> str | None:
    """The name of a test's chapter; None for tests of others in the same run."""
    return chapter_of(item.path.stem, item.name).name if item.path.parent == _PACKAGE else None


def _facts(config: pytest.Config) -> dict[str, str]:
    import torch

    from torch_openreg.conformance.target import target

    one = target()
    factor = one.tolerance.factor
    return {
        "device": str(one.device),
        "torch": str(torch.__version__),
        "tolerance": f"{factor:g} x torch.testing's" if factor else "equal bits",
        "samples": "all" if config.getoption("--conformance-full") else "some of each operator",
    }


class _Report:
    """Collects results, also those of workers of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._results: list[Result] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        from torch_openreg.conformance.records import written

        report = yield
        chapter = _chapter_of(item)
        if chapter is not None and report.when == "setup":
            name = item.nodeid.split("::", 1)[1]
            item.user_properties += [(_CHAPTER, chapter), (_TEST, f"{item.path.stem}::{name}")]
        if chapter is not None and report.when == "call":
            item.user_properties.append((_CASES, sum(record.samples for record in written)))
        written.clear()
        report.user_properties = list(item.user_properties)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if _CHAPTER not in properties or (report.when != "call" and report.passed):
            return
        test, cases = str(properties[_TEST]), properties.get(_CASES, 0)
        if report.when == "teardown":
            # The test itself has been counted.
            if any(one.test == test and one.outcome == "failed" for one in self._results):
                return
            self._results = [one for one in self._results if one.test != test]
        self._results.append(
            Result(
                str(properties[_CHAPTER]),
                test,
                report.outcome,
                _text_of(report),
                report.longreprtext if report.failed else "",
                cases if isinstance(cases, int) else 0,
            )
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._results:
            return
        terminalreporter.section("conformance")
        for line in terminal_lines(self._results):
            terminalreporter.line(line)
        path = self._config.getoption("--conformance-report")
        if path:
            facts = _facts(self._config)
            title = f"Conformance of {facts['device']}"
            page = to_html(
                self._results, title, facts, self._config.getoption("--conformance-docs")
            )
            Path(path).write_text(page, encoding="utf-8")
            terminalreporter.line("")
            terminalreporter.line(f"report: {path}")


def _text_of(report: pytest.TestReport) -> str:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return reason.removeprefix("Skipped: ")
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(crash.message) if crash is not None else report.longreprtext
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        first = lines[0] if lines else "failed"
        if first in ("AssertionError:", "AssertionError") and len(lines) > 1:
            first = lines[1]
        return first[:300]
    return ""
