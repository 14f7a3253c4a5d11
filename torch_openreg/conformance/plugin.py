"""The kit's plug-in for pytest: chooses the device, and reports by chapter.

``pytest_openreg`` registers it in runs of the kit only; other runs do not have its options.
"""

import functools
import math
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest

from pytest_openreg import emptied_file
from torch_openreg._device_name import DEVICE_NAME
from torch_openreg.conformance.chapters import CHAPTERS, chapter_of
from torch_openreg.conformance.deadlines import Deadlines
from torch_openreg.conformance.report import Result, lost_lines, terminal_lines, to_html

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
]

_PACKAGE = Path(__file__).resolve().parent
# Properties of tests' reports, which JUnit files and workers of pytest-xdist preserve.
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
        help="a multiple of torch.testing's tolerances (1), or 'exact' for bit-identical results",
    )
    group.addoption(
        "--conformance-chapter",
        metavar="NAMES",
        help="run only these chapters, separated by commas: "
        + ", ".join(chapter.name for chapter in CHAPTERS),
    )
    group.addoption(
        "--conformance-operators",
        metavar="NAMES",
        help="run only the tests of these operators, separated by commas, such as aten::mul.out",
    )
    group.addoption(
        "--conformance-full",
        action="store_true",
        help="run all samples of all dtypes, which takes hours",
    )
    group.addoption("--conformance-report", metavar="FILE", help="write the report as HTML")
    group.addoption(
        "--conformance-docs",
        metavar="URL",
        help="the URL of the documentation for the report's links",
    )
    group.addoption(
        "--conformance-deadline",
        metavar="SECONDS",
        default="600",
        help="the time limit of a test in seconds (600); 0 for none",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the device.

    Raises:
        pytest.UsageError: The device does not exist, or an option has an invalid value.
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
    tolerance = EXACT if text == "exact" else Tolerance(_number(config, "tolerance", "or 'exact'"))
    seconds = _number(config, "deadline", "of seconds")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, ValueError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n")[0]
        if torch._C._get_privateuse1_backend_name() == DEVICE_NAME:
            reason += (
                f"; the tests found {DEVICE_NAME}, not {name.split(':')[0]}: install it, or set "
                "OPENREG_DEVICE_TYPE=none"
            )
        raise pytest.UsageError(
            f"torch_openreg.conformance: expected a device that holds a tensor, got {name!r}: "
            f"{reason}"
        ) from error
    set_target(Target(device, tolerance))
    config.pluginmanager.register(_Report(config, _page(config), seconds), "conformance-report")


def _number(config: pytest.Config, option: str, kind: str) -> float:
    text = config.getoption(f"--conformance-{option}")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise pytest.UsageError(f"--conformance-{option}: expected a number {kind}, got {text!r}")
    return number


def _page(config: pytest.Config) -> Path | None:
    """The file of --conformance-report, which is empty until the run ends."""
    text = config.getoption("--conformance-report")
    if not text or hasattr(config, "workerinput"):
        return None
    return emptied_file("--conformance-report", Path(text))


def pytest_report_header(config: pytest.Config) -> str:
    """Returns a description of the device under test."""
    return ", ".join(f"{name}: {value}" for name, value in _facts(config).items())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the tests by chapters, and deselects what was not requested.

    A feature that other chapters rely on comes before them.

    Raises:
        pytest.UsageError: torch has no operator of a name that was requested.
    """
    order: dict[str | None, int] = {chapter.name: at for at, chapter in enumerate(CHAPTERS)}
    items.sort(key=lambda item: order.get(_chapter_of(item), -1))
    names = _chapters(config)
    if names:
        _select(config, items, lambda item: _chapter_of(item) in names)
    operators = _listed(config, "operators")
    if operators:
        from torch_openreg.conformance.selection import entries_for, entry_of

        entries = {item: entry_of(item) for item in items}
        by_name = {info.full_name: info for info in entries.values() if info is not None}
        chosen = entries_for(operators, by_name)
        _select(config, items, lambda item: getattr(entries[item], "full_name", None) in chosen)


def _select(
    config: pytest.Config, items: list[pytest.Item], is_chosen: Callable[[pytest.Item], bool]
) -> None:
    others = [item for item in items if not is_chosen(item)]
    items[:] = [item for item in items if is_chosen(item)]
    config.hook.pytest_deselected(items=others)


def _chapters(config: pytest.Config) -> frozenset[str]:
    names = frozenset(_listed(config, "chapter"))
    known = {chapter.name for chapter in CHAPTERS}
    if not names <= known:
        raise pytest.UsageError(
            f"--conformance-chapter: expected names out of {', '.join(sorted(known))}, got "
            f"{config.getoption('--conformance-chapter')!r}"
        )
    return names


def _listed(config: pytest.Config, option: str) -> list[str]:
    """The names in the value of an option."""
    text = config.getoption(f"--conformance-{option}") or ""
    return [name.strip() for name in text.split(",") if name.strip()]


def _chapter_of(item: pytest.Item) -> str | None:
    """The name of a test's chapter; None for tests of others in the same run."""
    is_ours = _resolved(item.path.parent) == _PACKAGE
    return chapter_of(item.path.stem, item.name).name if is_ours else None


@functools.cache
def _resolved(folder: Path) -> Path:
    """The folder without symbolic links, through which an installation may be reached."""
    return folder.resolve()


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

    def __init__(self, config: pytest.Config, page: Path | None, seconds: float) -> None:
        self._config = config
        self._page = page
        self._results: list[Result] = []
        self._planned: int | None = None  # not known where workers collect
        self._stop = ""
        self._is_worker = hasattr(config, "workerinput")
        # Before pytest captures it.
        self._stderr = os.dup(2)
        self._deadlines = Deadlines(seconds, self._stderr, self._give_up)
        # As for Ctrl-C, the results so far are reported.
        self._on_termination = signal.signal(signal.SIGTERM, _terminate)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._planned = sum(_chapter_of(item) is not None for item in session.items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if _chapter_of(item) is None:
            return (yield)
        with self._deadlines.hold(_name_of(item)):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        from torch_openreg.conformance.target import target

        if _chapter_of(item) is not None and (reason := target().lost) is not None:
            pytest.fail(reason, pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        from torch_openreg.conformance.records import written
        from torch_openreg.conformance.target import missing_in

        report = yield
        chapter = _chapter_of(item)
        if chapter is not None and report.when == "setup":
            item.user_properties += [(_CHAPTER, chapter), (_TEST, _name_of(item))]
        if chapter is not None and report.when == "call":
            item.user_properties.append((_CASES, sum(record.samples for record in written)))
        if chapter is not None and report.failed and call.excinfo is not None:
            text = missing_in(call.excinfo.value)
            if text is not None:
                report.outcome = "skipped"
                report.longrepr = (str(item.path), 0, f"Skipped: {text}")
        written.clear()
        report.user_properties = list(item.user_properties)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if _CHAPTER not in properties and report.failed:
            properties = _properties_of_crash(report.nodeid)
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

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        text = str(excinfo.value)
        self._stop = f"interrupted by {text}" if text else "interrupted"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._has_run_nothing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._config.getoption("collectonly"):
            return
        terminalreporter.section("conformance")
        for line in self._lines():
            terminalreporter.line(line)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        signal.signal(signal.SIGTERM, self._on_termination)
        os.close(self._stderr)

    def _has_run_nothing(self) -> bool:
        is_collecting = self._is_worker or self._config.getoption("collectonly")
        return not is_collecting and all(one.outcome == "skipped" for one in self._results)

    def _notes(self) -> list[str]:
        """Notes that complete the numbers."""
        notes = []
        if self._has_run_nothing():
            count = len(self._results)
            why = f"each of the {count} tests lacks something" if count else "no test was collected"
            notes.append(f"nothing ran: {why}")
        notes += lost_lines(self._results)
        count = len(self._results)
        if self._stop or (self._planned is not None and count < self._planned):
            reason = self._stop or "stopped early"
            of_all = "" if self._planned is None else f" of {self._planned}"
            notes.append(f"not complete: {reason}; {count}{of_all} tests have ended")
        return notes

    def _lines(self) -> list[str]:
        """The report for the terminal; writes the page, too."""
        notes = self._notes()
        base = self._config.getoption("--conformance-docs")
        lines = [*notes, *([""] if notes and self._results else [])]
        lines += terminal_lines(self._results) if self._results else []
        if self._page is None:
            return lines
        facts = _facts(self._config)
        page = to_html(self._results, f"Conformance of {facts['device']}", facts, base, notes)
        try:
            self._page.write_text(page, encoding="utf-8")
        except OSError as error:
            return [*lines, "", f"--conformance-report: the report was not written: {error}"]
        return [*lines, "", f"report: {self._page}"]

    def _give_up(self, test: str, reason: str) -> None:
        """Ends the process: a test hangs where nothing can end it. In a separate thread."""
        try:
            chapter = chapter_of(*_parts_of(test)).name
            self._results.append(Result(chapter, test, "failed", reason))
            self._stop = "a test hangs, and the process ends with it"
            lines = [f"failed: {test}: {reason}"] if self._is_worker else self._lines()
            os.write(self._stderr, "\n".join(["", *lines, ""]).encode())
        finally:
            os._exit(pytest.ExitCode.TESTS_FAILED)


def _name_of(item: pytest.Item) -> str:
    """The name of a test in the report: that of its module, of its class and its own."""
    return f"{item.path.stem}::{item.nodeid.split('::', 1)[1]}"


def _parts_of(test: str) -> tuple[str, str]:
    """The module of a test, and its name without that of its class."""
    return test.partition("::")[0], test.rpartition("::")[2]


def _properties_of_crash(nodeid: str) -> dict[str, object]:
    """The properties of a test that could not record them; none for a test outside the kit."""
    path, _, name = nodeid.partition("::")
    # pytest leaves the path out if it was started elsewhere.
    module = Path(path).stem or _module_with(name)
    test = f"{module}::{name}"
    try:
        return {_CHAPTER: chapter_of(*_parts_of(test)).name, _TEST: test}
    except ValueError:
        return {}


def _module_with(name: str) -> str:
    """The module of the kit that has a test; an empty string if none has it."""
    kind, _, test = name.partition("::")
    for path in sorted(_PACKAGE.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if f"class {kind}(" in text and f"def {test}(" in text:
            return path.stem
    return ""


class _Termination(KeyboardInterrupt):
    """As Ctrl-C, for which pytest reports what it has.

    ``pytest.exit`` raises an Exception, which a test takes for an error of the operator that it
    calls.
    """


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Termination("SIGTERM")


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
        return first.removeprefix("Failed: ")[:300]
    return ""
