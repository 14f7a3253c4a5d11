"""A plug-in for pytest: runs a test suite that is written for CUDA on the emulated device.

``pytest --openreg-cuda``, or ``openreg_cuda = true`` in pytest's configuration file, has the tests'
processes serve device type ``cuda`` from :mod:`torch_openreg`. This is a module outside of the
package, as importing the package imports torch.

In any run, an error of a kernel, which runs later than its call, is raised in the test that
launched the kernel: at the latest at the end of the test, or of its fixture. The last lines of the
run say how many tests met an error after which a GPU cannot be used.

``pytest --openreg-sanitizer``, or ``openreg_sanitizer = true``, runs each test under
``torch.openreg.sanitizer``, on either device type: a test with findings fails, and the reports are
the failure's text. ``--openreg-sanitizer=race,lifetime``, or ``openreg_sanitizer_kinds``, finds
these kinds only. The last lines of the run list all findings by pairs of lines, and
``--openreg-sanitizer-report=FILE`` has them as JSON.

``pytest --openreg-chaos=20`` runs each test under 20 schedules of the streams: lazy, eager, and the
seeds from 0. A test fails with the first schedule under which it fails, and names it. It is run
under that one alone with ``--openreg-schedule=7``, which takes a list, too. Before each schedule,
free memory is filled, so that no schedule finds the results of the one before.

``pytest --openreg-cuda --openreg-dry-run=h100`` runs the tests without their kernels on large
tensors, on devices with the memory of this GPU; the last lines of the run have the peak of each
test that has a budget, and the largest of all.

If none of the tests has launched work, the sanitizer, the schedules or the dry run have checked
nothing, and the run fails, unless ``--openreg-allow-unchecked`` is given.

Offers:

- the fixture ``cuda_gate``: a :class:`torch_openreg.testing.StreamGate`;
- the fixture ``openreg_sanitizer``: the module ``torch.openreg.sanitizer``, which collects during
  the test; findings that the test clears do not fail it;
- the marker ``needs_real_cuda``, which skips a test on the emulated device;
- the marker ``openreg_sanitizer(allow=["race"], expect="lifetime")``: kinds that a test may have,
  and one that it must have;
- the marker ``gpu_memory(at_most="20GiB")``: a test that takes more memory of a device fails, in a
  dry run and in any other.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import gc
import importlib
import importlib.util
import json
import os
import re
import shlex
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import pytest
from _pytest._code.code import ExceptionRepr

if TYPE_CHECKING:
    from torch_openreg.extras.sanitizer.sanitizer import Finding
    from torch_openreg.testing import StreamGate

__all__ = [
    "cuda_gate",
    "emptied_file",
    "openreg_sanitizer",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_load_initial_conftests",
    "pytest_report_header",
    "pytest_sessionstart",
]

_VARIABLE = "OPENREG_DEVICE_TYPE"
_DRY_RUN_VARIABLES = {
    "openreg_data_dependent": "OPENREG_DRY_RUN_SIZES",
    "openreg_made_up_value": "OPENREG_DRY_RUN_VALUE",
}
# How long the end of a test waits for the work that the test has launched.
_PATIENCE_MS = 10_000
# An argument that names the conformance kit: the package, or a path in it.
_KIT = re.compile(r"(^|[/\\])torch_openreg[./\\]conformance\b")
_MARKER = "needs_real_cuda: skip this test where torch_openreg emulates CUDA"
_SANITIZER_MARKER = (
    "openreg_sanitizer(allow, expect): with --openreg-sanitizer, kinds of findings that the test "
    "may have, and one that it must have"
)
_BUDGET_MARKER = (
    "gpu_memory(at_most): the test fails if it takes more memory of a device, such as '20GiB'"
)
# Found by default; a program that provokes a "capture" finding has an error in any case.
_KINDS = ("race", "lifetime", "host", "graph-input")
_CHOICES = (*_KINDS, "capture", "uninitialized")


# The process's stderr. While a test runs, pytest captures output on file descriptor 2.
_stderr = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options and the twin of one for the configuration file."""
    text = "serve device type cuda from torch_openreg, on the CPU"
    group = parser.getgroup("openreg", "torch_openreg")
    group.addoption("--openreg-cuda", action="store_true", default=None, help=text)
    group.addoption(
        "--openreg-sanitizer",
        action=_KindsAction,
        nargs="?",
        const=",".join(_KINDS),
        metavar="KINDS",
        help=f"find races of streams: {','.join(_CHOICES)}; by default {','.join(_KINDS)}",
    )
    group.addoption(
        "--openreg-allow-unchecked",
        action="store_true",
        help="let a run pass in which the sanitizer or the schedules have checked nothing",
    )
    group.addoption(
        "--openreg-sanitizer-report",
        type=Path,
        metavar="FILE",
        help="write all findings of --openreg-sanitizer to a file, as JSON",
    )
    group.addoption(
        "--openreg-chaos",
        type=_count,
        metavar="N",
        help="run each test under N schedules of the streams: lazy, eager, and seeds from 0",
    )
    group.addoption(
        "--openreg-schedule",
        type=_schedules,
        metavar="SCHEDULES",
        help="run each test under these schedules, such as lazy,7",
    )
    group.addoption(
        "--openreg-dry-run",
        type=str.lower,
        metavar="GPU",
        help="skip kernels on large tensors, with the memory of this GPU, such as h100",
    )
    group.addoption(
        "--openreg-data-dependent",
        choices=("worst", "none", "error"),
        help="of a dry run: sizes that depend on data are the worst, none, or an error",
    )
    group.addoption(
        "--openreg-made-up-value",
        choices=("0", "1"),
        help="of a dry run: what small results of skipped work read as",
    )
    parser.addini("openreg_cuda", text, type="bool", default=False)
    parser.addini(
        "openreg_sanitizer", "as --openreg-sanitizer without kinds", type="bool", default=False
    )
    parser.addini(
        "openreg_sanitizer_kinds",
        f"what openreg_sanitizer finds: {','.join(_CHOICES)}",
        type="string",
        default=",".join(_KINDS),
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Chooses the device type before a conftest.py can import torch.

    A run of the conformance kit uses the kit's plug-in and the requested device type: unless that
    is openreg, torch_openreg registers none. Without a device the plug-in ends the run.

    Raises:
        pytest.UsageError: if torch was imported before, or if an option is misspelled.
    """
    if any(_KIT.search(argument) for argument in args):
        if _device_asked_for(args) != "openreg":
            os.environ.setdefault(_VARIABLE, "none")
        early_config.pluginmanager.import_plugin("torch_openreg.conformance.plugin")
    _check_names(early_config, args)
    if not _is_asked_for(early_config):
        return
    if os.environ.get(_VARIABLE) != "cuda" and "torch" in sys.modules:
        raise pytest.UsageError(
            "--openreg-cuda: expected a process that has not imported torch yet, but another "
            f"plug-in has; set {_VARIABLE}=cuda in the environment instead"
        )
    # Workers of pytest-xdist and the processes that tests start inherit it.
    os.environ[_VARIABLE] = "cuda"
    options = early_config.known_args_namespace
    if (gpu := getattr(options, "openreg_dry_run", None)) is not None:
        os.environ["OPENREG_DRY_RUN"] = "1"
        os.environ["OPENREG_DRY_RUN_GPU"] = gpu
        # Of each process at its end, between the texts of tests.
        os.environ["OPENREG_DRY_RUN_SUMMARY"] = "0"
        for option, variable in _DRY_RUN_VARIABLES.items():
            if (value := getattr(options, option, None)) is not None:
                os.environ[variable] = value
    _offer_tools()


def _check_names(config: pytest.Config, args: list[str]) -> None:
    """Refuses an option that is unknown and resembles one of ours; pytest's text has no hint."""
    known = [
        name
        for group in ("openreg", "conformance")
        for option in config._parser.getgroup(group).options
        for name in option.names()
    ]
    for argument in args:
        name = argument.partition("=")[0]
        for prefix in ("--openreg-", "--conformance-"):
            if name.startswith(prefix) and name not in known:
                rests = [one.removeprefix(prefix) for one in known if one.startswith(prefix)]
                for near in difflib.get_close_matches(name.removeprefix(prefix), rests, 1):
                    raise pytest.UsageError(
                        f"unrecognized argument: {name}; did you mean {prefix}{near}?"
                    )


def _offer_tools() -> None:
    """Offers nvidia-smi and pynvml without the package, whose import imports torch."""
    package = importlib.util.find_spec("torch_openreg")
    folders = package.submodule_search_locations if package is not None else None
    for folder in folders or ():
        path = os.path.join(folder, "extras", "cuda", "tools", "__init__.py")
        spec = importlib.util.spec_from_file_location("_torch_openreg_tools", path)
        if spec is not None and spec.loader is not None and os.path.exists(path):
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.offer()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers, and the plug-ins that the options enable."""
    global _stderr
    _stderr = os.dup(2)
    config.add_cleanup(_forget_stderr)
    config.addinivalue_line("markers", _MARKER)
    config.addinivalue_line("markers", _SANITIZER_MARKER)
    config.addinivalue_line("markers", _BUDGET_MARKER)
    config.pluginmanager.register(_Budgets(), "openreg-budgets")
    config.pluginmanager.register(_LateErrors(), "openreg-late-errors")
    config.pluginmanager.register(_DeviceAsserts(), "openreg-device-asserts")
    path = config.getoption("--openreg-sanitizer-report")
    kinds = _kinds_of(config)
    if path is not None and not kinds:
        raise pytest.UsageError("--openreg-sanitizer-report: expected --openreg-sanitizer as well")
    if kinds:
        # Workers of pytest-xdist report to the process that started them.
        if path is not None and not _is_worker(config):
            path = emptied_file("--openreg-sanitizer-report", path)
        config.pluginmanager.register(
            _Sanitizer(config, kinds, None if _is_worker(config) else path), "openreg-sanitizer"
        )
    for option in _DRY_RUN_VARIABLES if config.getoption("--openreg-dry-run") is None else ():
        if config.getoption(option) is not None:
            name = "--" + option.replace("_", "-")
            raise pytest.UsageError(f"{name}: expected --openreg-dry-run as well")
    if config.getoption("--openreg-dry-run") is not None:
        if not _is_asked_for(config):
            raise pytest.UsageError("--openreg-dry-run: expected --openreg-cuda as well")
        config.pluginmanager.register(_DryRun(config), "openreg-dry-run")
    if schedules := _schedules_of(config):
        config.pluginmanager.register(_Schedules(config, schedules), "openreg-schedules")


def _forget_stderr() -> None:
    global _stderr
    os.close(_stderr)
    _stderr = 2


def pytest_sessionstart(session: pytest.Session) -> None:
    """Registers the device type after conftest.py has run, which may choose settings.

    Raises:
        pytest.UsageError: if it cannot be served. Tests that need a GPU would skip themselves.
    """
    if not _is_asked_for(session.config):
        return
    with warnings.catch_warnings():
        # A failure is reported once, below.
        warnings.filterwarnings("ignore", "The device 'openreg' is not available")
        # First: if the package imports it, torch warns of each of its kernels that is replaced.
        importlib.import_module("torch")
    try:
        importlib.import_module("torch_openreg")
    except ImportError as error:
        raise pytest.UsageError(f"--openreg-cuda: {error}") from error
    from torch_openreg import _settings

    # Checks only the environment; the settings are read when a test first needs a device.
    if (reason := _settings.no_device_text()) is not None:
        raise pytest.UsageError(f"--openreg-cuda: no device is available: {reason}")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Adds a line to the header of the run."""
    return "device type cuda: emulated by torch_openreg" if _is_asked_for(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips tests that need a GPU, however device type cuda was selected."""
    if not _is_emulated(config):
        return
    skip = pytest.mark.skip(reason="needs real CUDA; torch_openreg emulates it")
    for item in items:
        if item.get_closest_marker("needs_real_cuda") is not None:
            item.add_marker(skip)


class _LateErrors:
    """Raises the errors of kernels in the test, or the part of it, that launched the kernels."""

    @pytest.hookimpl(wrapper=True)
    def _raised(self) -> Generator[None, object, object]:
        try:
            result = yield
        except BaseException as error:
            # It has its own reason to fail, or to be skipped. The next test must not have this one.
            if (late := _late_error()) is not None:
                error.add_note(f"Besides, a kernel failed: {late}")
            raise
        if (late := _late_error()) is not None:
            raise late
        return result

    pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _raised


def _late_error() -> Exception | None:
    """The error of a kernel that no call has raised."""
    library = sys.modules.get("torch_openreg._C")
    # While a gate holds a stream, its work cannot end: what opens the gate comes later.
    if library is None or library._Gate.count_closed():
        return None
    try:
        library._device_take_error_all(_PATIENCE_MS, "the end of the test")
    except Exception as error:
        return error.with_traceback(None)
    return None


class _DeviceAsserts:
    """Counts the tests that met an error of a kernel after which a GPU cannot be used."""

    # The attribute of a test's report, also from a worker of pytest-xdist.
    _ATTRIBUTE = "openreg_device_assert"

    def __init__(self) -> None:
        self._tests: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        library = sys.modules.get("torch_openreg._C")
        if library is not None and library._take_assert_count() > 0:
            setattr(report, self._ATTRIBUTE, True)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if getattr(report, self._ATTRIBUTE, False):
            self._tests.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if count := len(self._tests):
            tests, owner = ("1 test", "its") if count == 1 else (f"{count} tests", "their")
            terminalreporter.line(
                f"{tests} met a device-side assert: on a GPU each later test of {owner} process "
                "fails"
            )


class _Tool:
    """A tool that checks tests while they run. A run in which it checks nothing fails."""

    # Its name, in headings and in the report of its failure.
    _NAME: str
    # The attribute of a test's report with what it has noted, also from a worker of pytest-xdist.
    _ATTRIBUTE: str

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._noted = pytest.StashKey[dict[str, Any]]()  # what the call of a test has noted
        self._tests = 0
        self._skipped = 0
        self._checked = 0  # tests that have launched work

    def pytest_collection_finish(self) -> None:
        """Freezes the imported objects, so that garbage collection after each test skips them."""
        gc.collect()
        gc.freeze()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call" and self._noted in item.stash:
            setattr(report, self._ATTRIBUTE, item.stash[self._noted])
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        noted = getattr(report, self._ATTRIBUTE, None)
        if noted is not None and (noted["launches"] or not report.skipped):
            self._tests += 1
            self._checked += noted["launches"] > 0
            self._take_note(noted)
        elif report.skipped:
            self._skipped += 1

    def _take_note(self, noted: dict[str, Any]) -> None:
        """Takes what was noted for a test."""
        raise NotImplementedError

    @functools.cached_property
    def _no_device_text(self) -> str | None:
        return _no_device_text()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        # Without a test, pytest's own exit status is not 0 either.
        if session.testscollected and (text := self._unchecked_text()) is not None:
            name = f"openreg::{self._NAME}"
            location = (name, None, name)
            try:
                pytest.fail(text, pytrace=False)
            except pytest.fail.Exception:
                error = pytest.ExceptionInfo.from_current().getrepr(style="value")
            report = pytest.TestReport(name, location, {}, "failed", error, "call")
            self._config.hook.pytest_runtest_logstart(nodeid=name, location=location)
            self._config.hook.pytest_runtest_logreport(report=report)
        return result

    def _unchecked_text(self) -> str | None:
        """Says that the whole run has checked nothing, with the reason; None if it has."""
        option = self._config.getoption
        is_run = not (option("collectonly") or option("setuponly"))
        if (
            self._checked
            or not is_run
            or option("--openreg-allow-unchecked")
            or _is_worker(self._config)
        ):
            return None
        is_cuda = _is_emulated(self._config)
        if (no_device := self._no_device_text) is not None:
            reason = f"no device is available: {no_device}"
        elif self._tests:
            device_type = "cuda" if is_cuda else "openreg"
            reason = f"no test launched work on device type {device_type}"
        elif self._skipped:
            reason = "all tests were skipped"
        else:
            reason = "no test ran"
        option_text = "" if is_cuda else " Tests of device type cuda need --openreg-cuda."
        return (
            f"nothing was checked: {reason}.{option_text} If there is nothing to check, add "
            "--openreg-allow-unchecked."
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._config.getoption("collectonly"):
            return
        terminalreporter.section(f"openreg {self._NAME}")
        for line in self._summary():
            terminalreporter.line(line)
        if (text := self._unchecked_text()) is not None:
            terminalreporter.line(text, red=True)

    def _summary(self) -> Iterator[str]:
        """The lines at the end of the run."""
        raise NotImplementedError


class _Sanitizer(_Tool):
    """Runs tests under the sanitizer, and summarizes the findings of all processes of the run."""

    _NAME = "sanitizer"
    _ATTRIBUTE = "openreg_sanitizer"

    def __init__(self, config: pytest.Config, kinds: frozenset[str], path: Path | None) -> None:
        super().__init__(config)
        self._kinds = kinds
        self._path = path
        self._launches = 0
        self._findings: list[dict[str, Any]] = []
        self._problem = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        import torch

        if self._no_device_text is not None:
            return (yield)
        from torch_openreg import _C

        sanitizer = _sanitizer_module()

        sanitizer.clear()
        options = {kind: kind in self._kinds for kind in _CHOICES if kind != "graph-input"}
        with sanitizer.check("collect", **options):
            before = _C._sanitizer_counts()["launches"]
            result: object = None
            try:
                result = yield
                gc.collect()
                torch.accelerator.synchronize()
            except BaseException as error:
                refused, is_disappointed = self._take(item, before)[0], False
                if not (refused and _is_skip(error)):
                    # It has its own reason to fail, or to be skipped.
                    _add_reports(error, refused)
                    raise
            else:
                refused, is_disappointed = self._take(item, before)
        # pytest keeps the exceptions of unittest's tests, instead of raising them.
        kept = getattr(item, "_excinfo", None)
        if kept and not (refused and _is_skip(kept[0].value)):
            _add_reports(kept[0].value, refused)
            return result
        if refused:
            if kept:
                del kept[:]
            pytest.fail(_reports_text(refused), pytrace=False)
        if is_disappointed:
            expected = _marks(item)[1]
            pytest.fail(
                f"expected the sanitizer to find {expected!r}, but it did not", pytrace=False
            )
        return result

    def _take(self, item: pytest.Item, before: int) -> tuple[list[Finding], bool]:
        """Returns the findings that fail the test, and whether an expected one is missing."""
        from torch_openreg import _C

        sanitizer = _sanitizer_module()

        launches = _C._sanitizer_counts()["launches"] - before
        found = [one for one in sanitizer.findings() if one.kind in self._kinds]
        sanitizer.clear()
        allowed, expected = _marks(item)
        refused = [one for one in found if one.kind not in {*allowed, expected}]
        noted = [
            one.as_dict() | {"test": item.nodeid, "is_marked": one not in refused} for one in found
        ]
        item.stash[self._noted] = {"launches": launches, "findings": noted}
        is_disappointed = expected is not None and all(one.kind != expected for one in found)
        return refused, is_disappointed

    def _take_note(self, noted: dict[str, Any]) -> None:
        self._launches += noted["launches"]
        self._findings += noted["findings"]

    def _summary(self) -> Iterator[str]:
        refused: Counter[str] = Counter()
        for finding in self._findings:
            if not finding["is_marked"]:
                refused[_line_pair(finding)] += finding["count"]
        for pair, count in sorted(refused.items(), key=lambda entry: (-entry[1], entry[0])):
            yield f"{count:5} x {pair}"
        marked = sum(finding["is_marked"] for finding in self._findings)
        count = len(self._findings) - marked
        yield (
            f"{self._tests} tests, {self._launches} launches checked, "
            f"{_findings_text(count)}, {marked} that a marker names"
        )
        if self._problem:
            yield self._problem

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._path is None:
            return
        report = {"tests": self._tests, "launches": self._launches, "findings": self._findings}
        try:
            self._path.write_text(json.dumps(report, indent=1) + "\n")
        except OSError as error:
            # An exception here would replace the whole report of the run.
            self._problem = f"--openreg-sanitizer-report: the findings were not written: {error}"
            session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR


class _Schedules(_Tool):
    """Runs each test under several schedules, to the first under which it fails."""

    _NAME = "schedules"
    _ATTRIBUTE = "openreg_schedules"

    def __init__(self, config: pytest.Config, schedules: tuple[str, ...]) -> None:
        super().__init__(config)
        self._schedules = schedules
        self._failed: list[str] = []

    def _command(self, item: pytest.Item, name: str) -> str:
        """The command that runs a test again under a schedule, where this run was started."""
        path = os.path.relpath(item.path, self._config.invocation_params.dir)
        words = ["pytest", "::".join([path, *item.nodeid.split("::")[1:]])]
        if self._config.getoption("--openreg-cuda"):
            words.append("--openreg-cuda")
        return shlex.join([*words, f"--openreg-schedule={name}"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        from _pytest.runner import runtestprotocol

        if self._no_device_text is not None:
            return None
        from torch_openreg import _C
        from torch_openreg.testing import schedule

        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports: list[pytest.TestReport] = []
        _C._take_has_launched()
        for number, name in enumerate(self._schedules):
            # The first call of a fallback waits, and so may hide what later runs show: without a
            # repetition, a schedule would find more after other runs than alone.
            for _ in range(2):
                plans = _C._fallback_memory()["plans"]
                # Removes findings of an earlier run. Fixtures are set up again by themselves.
                del item.user_properties[:], item._report_sections[:]
                # Frees the tensors of an earlier run, whose memory is filled then.
                gc.collect()
                with schedule(name):
                    reports = runtestprotocol(item, nextitem=nextitem, log=False)
                has_learned = _C._fallback_memory()["plans"] > plans
                if not has_learned or not all(report.passed for report in reports):
                    break
            failed = [report for report in reports if report.failed]
            for report in failed:
                text = (
                    f"{item.nodeid} fails under schedule {name}, after {number} others under which "
                    f"it does not. Again: {self._command(item, name)}"
                )
                if isinstance(report.longrepr, ExceptionRepr):
                    report.longrepr.addsection("openreg schedule", text)
                else:
                    report.sections.append(("openreg schedule", text))
            if failed or any(report.skipped for report in reports):
                break
        noted = {
            "launches": int(_C._take_has_launched()),
            "failed": f"{item.nodeid} fails under schedule {name}" if failed else None,
        }
        # If a fixture fails, there is no call.
        for report in [one for one in reports if one.when == "call" or one.failed][:1]:
            setattr(report, self._ATTRIBUTE, noted)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        result = yield
        if self._no_device_text is None:
            from torch_openreg import _C

            _C._device_synchronize_all()  # raises the errors of work that no call has waited for
        return result

    def _take_note(self, noted: dict[str, Any]) -> None:
        if noted["failed"] is not None:
            self._failed.append(noted["failed"])

    def _summary(self) -> Iterator[str]:
        yield from self._failed
        count = len(self._schedules)
        yield (
            f"{self._tests} tests ran under {count} schedule{'' if count == 1 else 's'}, "
            f"{self._checked} of them launched work"
        )


class _Budgets:
    """Fails tests that take more memory of a device than their marker ``gpu_memory`` allows."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        marker = item.get_closest_marker("gpu_memory")
        if marker is None or (memory := _memory_module()) is None:
            return (yield)
        limit = _budget(marker)
        _begin_peak(memory)
        result = yield
        for device in range(memory.device_count()):
            reserved = memory.max_memory_reserved(device)
            if reserved > limit:
                allocated = memory.max_memory_allocated(device)
                pytest.fail(
                    f"expected at most {_size(limit)} of GPU memory, got {_size(reserved)} "
                    f"reserved, {_size(allocated)} allocated, on device {device}",
                    pytrace=False,
                )
        return result


class _DryRun(_Tool):
    """Notes the peak of each test of a dry run."""

    _NAME = "dry run"
    _ATTRIBUTE = "openreg_dry_run"

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._peaks: list[tuple[int, str]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if self._no_device_text is not None or (memory := _memory_module()) is None:
            return (yield)
        from torch_openreg import _C

        _begin_peak(memory)
        _C._take_has_launched()
        try:
            return (yield)
        finally:
            item.stash[self._noted] = {
                "launches": int(_C._take_has_launched()),
                "test": item.nodeid,
                "peak": max(map(memory.max_memory_reserved, range(memory.device_count()))),
            }

    def _take_note(self, noted: dict[str, Any]) -> None:
        self._peaks.append((noted["peak"], noted["test"]))

    def _summary(self) -> Iterator[str]:
        gpu = self._config.getoption("--openreg-dry-run")
        yield f"{self._tests} tests ran dry for {gpu}, {self._checked} of them launched work"
        for peak, test in sorted(self._peaks, reverse=True)[:5]:
            yield f"{_size(peak)} reserved by {test}"


def _memory_module() -> Any:
    """The module with the statistics of the devices' memory; None if there is no device."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "openreg"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return module
    return None


def _begin_peak(memory: Any) -> None:
    """Has the peaks of memory be those of what follows, and of tensors that are alive."""
    gc.collect()
    memory.empty_cache()
    for device in range(memory.device_count()):
        memory.reset_peak_memory_stats(device)


def _budget(marker: pytest.Mark) -> int:
    """The bytes of a marker ``gpu_memory``.

    Raises:
        pytest.UsageError: it has none.
    """
    text = str(marker.kwargs.get("at_most", ""))
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT])iB", text)
    if found is None or marker.args or set(marker.kwargs) != {"at_most"}:
        raise pytest.UsageError(
            f"gpu_memory: expected at_most with a size such as '20GiB', got {marker}"
        )
    return int(float(found[1]) * 1024 ** (" KMGT".index(found[2])))


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.2f} MiB"


def _is_worker(config: pytest.Config) -> bool:
    """Whether pytest-xdist has started this process, which reports to another one."""
    return hasattr(config, "workerinput")


def _no_device_text() -> str | None:
    """Why this process, or its workers, can have no device; None if they can."""
    if os.environ.get(_VARIABLE) == "none":
        return f"{_VARIABLE} is 'none'"
    try:
        # First: if the package imports it, torch warns of each of its kernels that is replaced.
        importlib.import_module("torch")
        from torch_openreg import _settings
    except ImportError as error:
        return str(error)
    return _settings.no_device_text()


def _add_reports(error: BaseException, findings: list[Finding]) -> None:
    """Adds findings to the text of a test that fails by itself."""
    if findings:
        error.add_note(f"Besides, the sanitizer has found:\n{_reports_text(findings)}")


def _is_skip(error: BaseException) -> bool:
    return isinstance(error, pytest.skip.Exception | unittest.SkipTest)


def _marks(item: pytest.Item) -> tuple[list[str], str | None]:
    """The kinds of findings that a test may have, and the one that it must have."""
    marker = item.get_closest_marker("openreg_sanitizer")
    arguments = marker.kwargs if marker else {}
    return arguments.get("allow", []), arguments.get("expect")


def _findings_text(count: int) -> str:
    return f"{count} finding{'' if count == 1 else 's'}"


def _line_pair(finding: dict[str, Any]) -> str:
    """A finding in a line: its kind, the line of the later access, and that of the earlier one."""
    later, earlier = (
        f"{_short(access['filename'])}:{access['lineno']}"
        if access["filename"]
        else access["operator"]
        for access in finding["accesses"]
    )
    return f"{finding['kind']}: {later} after {earlier}"


def _short(path: str) -> str:
    """The path as the shell would name it, if that is shorter."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return min(relative, path, key=len)


def _reports_text(findings: list[Finding]) -> str:
    """The findings, each in a line, then the reports."""
    pairs = [_line_pair(one.as_dict()) for one in findings]
    return "\n".join([*pairs, "", "\n\n".join(map(str, findings))])


def _kinds_of(config: pytest.Config) -> frozenset[str]:
    """The kinds to find: those of the option, or of the configuration file; none: no sanitizer."""
    given = config.getoption("--openreg-sanitizer")
    if given is not None:
        return cast(frozenset[str], given)
    if not config.getini("openreg_sanitizer"):
        return frozenset()
    text = config.getini("openreg_sanitizer_kinds")
    kinds = frozenset(text.replace(",", " ").split())
    if not kinds or not kinds <= set(_CHOICES):
        raise pytest.UsageError(
            f"openreg_sanitizer_kinds: expected kinds of {', '.join(_CHOICES)}, got {text!r}"
        )
    return kinds


def _schedules_of(config: pytest.Config) -> tuple[str, ...]:
    given = config.getoption("--openreg-schedule")
    count = config.getoption("--openreg-chaos") or 0
    if given:
        return cast(tuple[str, ...], given)
    return ("lazy", "eager", *map(str, range(count - 2)))[:count]


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of schedules from 1, got {text!r}")
    return int(text)


def _schedules(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(name in ("free", "lazy", "eager") or name.isdigit() for name in names):
        raise argparse.ArgumentTypeError(
            f"expected free, lazy, eager or numbers, separated by commas, got {text!r}"
        )
    return names


class _KindsAction(argparse.Action):
    """Takes kinds of findings; a file or folder that follows the option is not its value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        text = str(values)
        kinds = frozenset(text.split(","))
        if not kinds <= set(_CHOICES):
            if not os.path.exists(text.partition("::")[0]):
                raise argparse.ArgumentError(
                    self,
                    f"expected kinds of {', '.join(_CHOICES)} after =, got {text!r}, which is not "
                    "a file or folder either",
                )
            # Parsers of subcommands store unparsed arguments there; pytest reads them.
            rest = vars(namespace).setdefault(argparse._UNRECOGNIZED_ARGS_ATTR, [])
            rest.append(text)
            kinds = frozenset(_KINDS)
        setattr(namespace, self.dest, kinds)


def emptied_file(option: str, path: Path) -> Path:
    """Returns the absolute path of a file to write at the end, which is empty until then.

    Raises:
        pytest.UsageError: It cannot be written.
    """
    path = path.absolute()
    try:
        path.write_text("")
    except OSError as error:
        raise pytest.UsageError(
            f"{option}: expected a file that can be written, got '{path}': {error.strerror}"
        ) from error
    return path


def _sanitizer_module() -> Any:
    from torch_openreg import extras

    extras.require("pytest --openreg-sanitizer", "sanitizer")
    from torch_openreg.extras.sanitizer import sanitizer

    return sanitizer


@pytest.fixture
def openreg_sanitizer() -> Iterator[ModuleType]:
    """The sanitizer, collecting: ``openreg_sanitizer.findings()``."""
    sanitizer = _sanitizer_module()
    if sanitizer.is_enabled():
        yield sanitizer
        return
    sanitizer.clear()
    with sanitizer.check("collect"):
        yield sanitizer
    sanitizer.clear()


@pytest.fixture
def cuda_gate() -> StreamGate:
    """A gate for the current stream: ``with cuda_gate as gate:`` holds it until ``gate.open()``."""
    import torch

    if not getattr(torch.cuda, "is_emulated", False):
        pytest.skip("cuda_gate: needs the device type cuda of torch_openreg: pytest --openreg-cuda")
    from torch_openreg.testing import StreamGate

    return StreamGate()


def _device_asked_for(args: list[str]) -> str | None:
    """The device type of ``--device``; None if the option is missing."""
    for argument, following in zip(args, [*args[1:], ""], strict=True):
        if argument == "--device" or argument.startswith("--device="):
            name = following if argument == "--device" else argument.partition("=")[2]
            return name.split(":")[0]
    return None


def _is_asked_for(config: pytest.Config) -> bool:
    option = getattr(config.known_args_namespace, "openreg_cuda", None)
    return cast(bool, config.getini("openreg_cuda")) if option is None else bool(option)


def _is_emulated(config: pytest.Config) -> bool:
    """Whether this process has our device type cuda: by an option, or by the environment."""
    if _is_asked_for(config):
        return True
    torch = sys.modules.get("torch")
    if torch is None:  # the variable chooses when it is imported
        return os.environ.get(_VARIABLE) == "cuda"
    return bool(getattr(torch.cuda, "is_emulated", False))
