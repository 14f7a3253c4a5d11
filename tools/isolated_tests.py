"""Runs test files with pytest, each in a separate process, and reports the result of every test.

``run_file`` is for programs that run tests of others. A test that crashes its process, or that
exceeds the time limit, is one failed test: a new process continues with the following tests. What
happens outside of tests has an outcome, too, under the names ``<import>`` and ``<exit>``.

This file is also the pytest plug-in in those processes. It writes a line of JSON at the beginning
and at the end of each test, so that the missing line identifies the test that was running.
"""

import argparse
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

__all__ = [
    "EXIT",
    "FAILURES",
    "IMPORT",
    "Limits",
    "Outcome",
    "add_arguments",
    "collect_file",
    "parse_arguments",
    "run_file",
    "write_report",
]

# The name for events before and after all tests of a file.
IMPORT, EXIT = "<import>", "<exit>"

# The ways to end that are failures. The others are passed, skipped, and xfailed: a failure that the
# test itself expects.
FAILURES = ("failed", "crashed", "timed out")

_REQUEST = "ISOLATED_TESTS_REQUEST"  # the file with the plug-in's instructions
_MAX_RESTARTS = 50  # of one file
_TEXT_LENGTH = 4000  # of a failure's text that is kept
_USUAL_CODES = (0, 1, 5)  # pytest's: passed, failed, no tests


@dataclass(frozen=True)
class Limits:
    """Times in seconds: for one test, for importing a file, and for ending the process."""

    test_s: float = 120.0
    import_s: float = 300.0
    exit_s: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """How a test ended: ``passed``, ``skipped``, ``xfailed`` or one of FAILURES, and its text."""

    kind: str
    text: str = ""
    duration_s: float = 0.0
    allocations: int = 0  # of device memory, by torch's accelerator

    @property
    def is_failure(self) -> bool:
        """Whether the test counts as failed."""
        return self.kind in FAILURES

    @property
    def last_line(self) -> str:
        """The most informative line of the text: pytest puts the error's line last."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        errors = [line[1:].strip() for line in lines if line.startswith("E ")]
        return (errors or lines or [""])[0 if errors else -1]


@dataclass
class _Log:
    """The output of the plug-in so far."""

    collected: list[str] | None = None
    running: str | None = None
    is_finished: bool = False
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def add(self, line: dict[str, Any]) -> None:
        if "collected" in line:
            self.collected = line["collected"]
        elif "started" in line:
            self.running = line["started"]
        elif "ended" in line:
            self.running = None
            self.outcomes[line["ended"]] = Outcome(
                line["kind"], line["text"], line["duration_s"], line["allocations"]
            )
        elif "finished" in line:
            self.is_finished = True


def add_arguments(parser: argparse.ArgumentParser, folder: str) -> None:
    """Adds the arguments FOLDER and FILE, --timeout and --report; ``folder`` contains its files."""
    parser.add_argument("folder", metavar="FOLDER", help=folder)
    parser.add_argument("files", nargs="*", metavar="FILE", help="in it; default: all test_*.py")
    parser.add_argument(
        "--timeout",
        type=float,
        default=Limits.test_s,
        help="of one test, in seconds (default: %(default)g)",
    )
    parser.add_argument("--report", metavar="FILE", help="writes all outcomes there, as JSON")


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the command line; ends the program if FOLDER or a FILE does not exist.

    It ends as well if the report cannot be written: not after hours of tests.
    """
    options = parser.parse_args()
    if not Path(options.folder).is_dir():
        parser.error(f"expected a folder, got {options.folder!r}")
    for name in options.files:
        if not Path(options.folder, name).is_file():
            parser.error(f"expected files of {options.folder}, got {name!r}")
    if options.report and not _can_be_written(Path(options.report)):
        parser.error(f"--report: expected a file that can be written, got {options.report!r}")
    return options


def _can_be_written(file: Path) -> bool:
    return os.access(file if file.exists() else file.parent, os.W_OK) and not file.is_dir()


def write_report(file: str | None, results: Mapping[str, Any]) -> None:
    """Writes results by the tests' names, dataclasses, as JSON; None: nowhere."""
    if file:
        report = {name: asdict(one) for name, one in results.items()}
        Path(file).write_text(json.dumps(report, indent=1), encoding="utf-8")


def collect_file(
    file: Path, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Returns the names of a file's tests, in order, without running them.

    If the file cannot be imported, that is a name without a test: ``FILE::<import>``.
    """
    log = _Log()
    _run_process(file, folder, [*arguments, "--collect-only"], environment, Limits(), log, {})
    if log.collected:
        return log.collected
    is_empty = log.is_finished and not any(one.is_failure for one in log.outcomes.values())
    return [] if is_empty else [f"{file.relative_to(folder).as_posix()}::{IMPORT}"]


def run_file(
    file: Path,
    folder: Path,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
    limits: Limits | None = None,
) -> dict[str, Outcome]:
    """Runs the tests of a file and returns the outcome of each, by name.

    Args:
        file: the test file
        folder: where pytest runs; names of tests start with the file's path in it
        arguments: further arguments for pytest
        environment: environment variables, in addition to those of this process
        only: the names of the tests to run, all by default
        limits: how long it may take
    """
    limits = limits or Limits()
    environment = environment or {}
    name = file.relative_to(folder).as_posix()
    outcomes: dict[str, Outcome] = {}
    for _ in range(_MAX_RESTARTS):
        log = _Log()
        request = {"done": list(outcomes), "only": None if only is None else list(only)}
        end = _run_process(file, folder, arguments, environment, limits, log, request)
        outcomes.update(log.outcomes)
        if end is None:
            return outcomes
        if log.running is not None:
            outcomes[log.running] = end
        elif log.is_finished:
            outcomes[f"{name}::{EXIT}"] = end
            return outcomes
        elif log.collected is None:
            outcomes[f"{name}::{IMPORT}"] = end
            return outcomes
        elif not log.outcomes:
            outcomes[f"{name}::{EXIT}"] = end  # between two tests, without getting ahead
            return outcomes
    outcomes[f"{name}::{EXIT}"] = Outcome("crashed", f"stopped after {_MAX_RESTARTS} processes")
    return outcomes


def _run_process(
    file: Path,
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    limits: Limits,
    log: _Log,
    request: dict[str, Any],
) -> Outcome | None:
    """Runs pytest once; returns None, or what ended it before its time."""
    with tempfile.TemporaryDirectory() as scratch:
        lines, wanted = Path(scratch, "log"), Path(scratch, "request")
        lines.touch()
        wanted.write_text(json.dumps(request | {"log": str(lines)}), encoding="utf-8")
        path = os.pathsep.join(filter(None, [str(_HERE), os.environ.get("PYTHONPATH", "")]))
        with (
            lines.open(encoding="utf-8") as reader,
            Path(scratch, "output").open("w+b") as output,
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "pytest", "-p", "isolated_tests", "-q"),
                    *("-p", "no:cacheprovider", f"--rootdir={folder}", *arguments, str(file)),
                ],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, **environment, _REQUEST: str(wanted)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process,
        ):
            try:
                return _follow(process, reader, output, log, limits)
            finally:
                # Also the processes that the tests have started and not ended.
                _kill_group(process)


def _follow(
    process: subprocess.Popen[bytes],
    reader: IO[str],
    output: IO[bytes],
    log: _Log,
    limits: Limits,
) -> Outcome | None:
    partial, since = "", time.monotonic()
    while True:
        code = process.poll()  # before reading: its output is then complete
        text = reader.read()
        if text:
            since = time.monotonic()
            *lines, partial = (partial + text).split("\n")
            for line in lines:
                log.add(json.loads(line))
        if code is not None:
            return _ending(code, output, log, time.monotonic() - since)
        waited_s = time.monotonic() - since
        limit_s, what = limits.test_s, "the test"
        if log.is_finished:
            limit_s, what = limits.exit_s, "the process, after its last test,"
        elif log.collected is None:
            limit_s, what = limits.import_s, "importing the file"
        if waited_s > limit_s:
            text = f"{what} took more than {limit_s:g} s\n{_tail(output)}"
            return Outcome("timed out", text, waited_s)
        time.sleep(0.02)


def _ending(code: int, output: IO[bytes], log: _Log, duration_s: float) -> Outcome | None:
    if code < 0:
        name = signal.Signals(-code).name
        return Outcome("crashed", f"{_tail(output)}\nended by {name}", duration_s)
    has_import_error = any(name.endswith(IMPORT) for name in log.outcomes)
    if log.is_finished and (code in _USUAL_CODES or has_import_error):
        return None
    return Outcome("crashed", f"{_tail(output)}\nended with status {code}", duration_s)


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode("utf-8", "replace")[-_TEXT_LENGTH:]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # The group may exist without its leader, and ends with its last process.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


_HERE = Path(__file__).resolve().parent


# --- The plug-in, in the process of the tests


class _Recorder:
    def __init__(self, request: dict[str, Any]) -> None:
        self._log = Path(request["log"])
        self._done = set(request.get("done") or ())
        self._only = None if request.get("only") is None else set(request["only"])
        self._reports: list[pytest.TestReport] = []
        self._allocations = 0

    def _write(self, **line: Any) -> None:
        # One write each: a process that ends in the next test has written this line.
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        wanted: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            is_wanted = self._only is None or item.nodeid in self._only
            (wanted if is_wanted and item.nodeid not in self._done else left_out).append(item)
        self._write(collected=[item.nodeid for item in wanted])
        items[:] = wanted
        config.hook.pytest_deselected(items=left_out)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._write(
                ended=f"{report.nodeid}::{IMPORT}",
                kind=report.outcome,
                text=_shortened(report.longrepr),
                duration_s=0.0,
                allocations=0,
            )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._reports = []
        self._allocations = _allocation_count()
        self._write(started=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        kind, text = _combined(self._reports)
        duration_s = sum(report.duration for report in self._reports)
        self._write(
            ended=nodeid,
            kind=kind,
            text=text,
            duration_s=duration_s,
            # Fewer if the test has reset the numbers.
            allocations=max(_allocation_count() - self._allocations, 0),
        )
        if kind == "failed":
            _drop_failure()

    def pytest_sessionfinish(self) -> None:
        self._write(finished=True)


def _combined(reports: Sequence[pytest.TestReport]) -> tuple[str, str]:
    """Returns how a test ended whose phases and subtests ended as in the reports."""
    for report in reports:
        if report.failed:
            return "failed", _shortened(report.longrepr)
    for report in reports:
        if report.skipped:
            is_expected = hasattr(report, "wasxfail")
            return "xfailed" if is_expected else "skipped", _shortened(report.longrepr)
    return "passed", ""


def _drop_failure() -> None:
    """Frees what a failed test's frames refer to, such as the memory of its tensors."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        with contextlib.suppress(AttributeError):
            delattr(sys, name)
    gc.collect()


def _allocation_count() -> int:
    """Returns how often memory of a device has been allocated, without initializing any."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.accelerator.is_available():
        return 0
    if not torch.get_device_module(torch.accelerator.current_accelerator()).is_initialized():
        return 0
    devices = range(torch.accelerator.device_count())
    counts = [torch.accelerator.memory_stats(index) for index in devices]
    return sum(one.get("allocation.all.allocated", 0) for one in counts)


def _shortened(representation: object) -> str:
    if isinstance(representation, tuple):  # of a skip: file, line, reason
        return str(representation[-1])
    return str(representation)[-_TEXT_LENGTH:]


def pytest_configure(config: pytest.Config) -> None:
    """Registers the recorder; pytest calls it when it loads this file as a plug-in."""
    if request := os.environ.pop(_REQUEST, None):
        recorder = _Recorder(json.loads(Path(request).read_text(encoding="utf-8")))
        config.pluginmanager.register(recorder, "isolated tests")
