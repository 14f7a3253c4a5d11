"""Runs pytest for each of several test files, some at a time, and counts what came out."""

import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import INDUCTOR, MODULES, environment_of
from fork_server import ForkServer

__all__ = ["Limits", "Outcome", "Runner"]

_ROOT = Path(__file__).resolve().parent.parent
_MAX_CRASHES = 50
_NO_TESTS = 5  # pytest's exit code
# What fork servers import: all of them, those for the sweeps, and those for files that compile.
_IMPORTS = (
    "pytest",
    "expecttest",
    "torch",
    "torch.testing._internal.common_utils",
    "torch.distributed.tensor",  # assertEqual imports it
)
_IMPORTS_OF_SWEEPS = ("torch.testing._internal.common_methods_invocations",)
_IMPORTS_OF_COMPILERS = ("torch._dynamo", "torch._inductor.compile_fx")

# What a server imports, and the environment variables that it has in addition.
_Kind = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Limits:
    """Limits of time, in seconds, of a test and of a file."""

    test_s: int
    file_s: int


@dataclass(frozen=True)
class Outcome:
    """The results of a test file.

    Attributes:
        name: The file, relative to the root of the repository; or the subject of the tests.
        is_success: whether nothing failed.
        counts: how many tests "passed", "failed", were "skipped" or "failed as expected".
        seconds: how long it took.
        output: what pytest printed.
        sanitizer: The sanitizer's report, if it was requested.
    """

    name: str
    is_success: bool
    counts: Counter[str]
    seconds: float
    output: str
    sanitizer: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        verdict = "ok    " if self.is_success else "FAILED"
        counts = ", ".join(f"{count} {what}" for what, count in self.counts.items()) or "no tests"
        return f"{verdict} {self.name}: {counts} in {self.seconds:.0f} s"


class Runner:
    """Runs pytest with given arguments, in a child of a fork server for each file.

    If the child ends without results, as a test has ended it or exceeded the time limit, or if the
    server cannot start, pytest runs anew with a worker of pytest-xdist, which is replaced after
    such a test.

    Args:
        environment: The environment of all processes.
        jobs: The number of files at a time.
        limits: The limits of time.
        is_sanitized: Whether the sanitizer's report is requested.
        durations: A folder for JUnit files.
        may_be_empty: Whether a file without tests is a success.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        jobs: int,
        limits: Limits,
        *,
        is_sanitized: bool = False,
        durations: Path | None = None,
        may_be_empty: bool = False,
    ) -> None:
        # Idle OpenMP threads would spin and take the processor from the files that run beside.
        self._environment = {"OMP_WAIT_POLICY": "passive"} | dict(environment)
        self._jobs = jobs
        self._limits = limits
        self._is_sanitized = is_sanitized
        self._durations = durations
        self._may_be_empty = may_be_empty
        self._idle: dict[_Kind, list[ForkServer]] = {}
        # What Ctrl-C has to end: it does not reach process groups other than our own.
        self._busy: set[ForkServer] = set()
        self._processes: set[subprocess.Popen[str]] = set()

    def run(self, runs: Mapping[str, Sequence[str]]) -> list[Outcome]:
        """Runs pytest with the arguments of each name, and prints what came out."""
        outcomes = []
        with concurrent.futures.ThreadPoolExecutor(self._jobs) as executor:
            futures = [executor.submit(self._run_one, *run) for run in runs.items()]
            try:
                for future in concurrent.futures.as_completed(futures):
                    outcome = future.result()
                    outcomes.append(outcome)
                    if not outcome.is_success:
                        print(outcome.output)
                    print(outcome, flush=True)
            except KeyboardInterrupt:
                executor.shutdown(wait=False, cancel_futures=True)
                for server in self._busy:
                    server.kill_child()
                for process in self._processes:
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        for servers in self._idle.values():
            for server in servers:
                server.close()
        self._idle.clear()
        return outcomes

    def _run_one(self, name: str, arguments: Sequence[str]) -> Outcome:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.xml"
            sanitizer = Path(folder) / "sanitizer.json"
            arguments = (
                # Prints the stacks of all threads, then ends the process.
                *("-o", f"faulthandler_timeout={self._limits.test_s}"),
                *("-o", "faulthandler_exit_on_timeout=true"),
                f"--junitxml={results}",
                *([f"--openreg-sanitizer-report={sanitizer}"] if self._is_sanitized else []),
                *arguments,
            )
            exit_code, output = self._run_forked(arguments, Path(folder) / "output.txt")
            if not results.exists():
                exit_code, output = self._run_with_worker(arguments)
            counts = _count(results) if results.exists() else Counter()
            if self._durations is not None and results.exists():
                self._durations.mkdir(parents=True, exist_ok=True)
                shutil.copy(results, self._durations / f"{name.replace('/', '.')}.xml")
            report = json.loads(sanitizer.read_text()) if sanitizer.exists() else None
        is_success = exit_code == 0 or (exit_code == _NO_TESTS and self._may_be_empty)
        return Outcome(name, is_success, counts, time.monotonic() - start, output, report)

    def _run_forked(self, arguments: Sequence[str], output: Path) -> tuple[int | None, str]:
        imports, variables = kind = _kind_of(arguments, self._environment)
        idle = self._idle.setdefault(kind, [])
        server = idle.pop() if idle else ForkServer(imports, self._environment | dict(variables))
        self._busy.add(server)
        try:
            exit_code = server.run(arguments, output, self._limits.file_s)
        except ChildProcessError as error:  # torch cannot be imported, for example
            return None, str(error)
        finally:
            self._busy.discard(server)
        idle.append(server)
        text = output.read_text(encoding="utf-8", errors="replace")
        if exit_code is not None and exit_code < 0:
            text += f"\nended by {signal.Signals(-exit_code).name}"
        return exit_code, text

    def _run_with_worker(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Runs pytest-xdist in a process group, and ends the group if it takes too long."""
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest"),
                *("-n", "1", f"--max-worker-restart={_MAX_CRASHES}"),
                *arguments,
            ],
            cwd=_ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._processes.add(process)
        try:
            output, _ = process.communicate(timeout=self._limits.file_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\nended: not done after {self._limits.file_s} s"
        finally:
            self._processes.discard(process)
        return process.returncode, output


def _kind_of(arguments: Sequence[str], environment: Mapping[str, str]) -> _Kind:
    """The kind of server for the first file in the arguments."""
    for argument in arguments:
        file = _ROOT / argument
        if file.suffix == ".py":
            imports, variables = _IMPORTS, environment_of(file)
            # As CUDA, torch's databases use a device, after which no child can.
            if file.parent.name == "generic" and environment.get("OPENREG_DEVICE_TYPE") != "cuda":
                imports += _IMPORTS_OF_SWEEPS
            if MODULES[INDUCTOR].items() <= variables.items():
                imports += _IMPORTS_OF_COMPILERS
            return imports, tuple(variables.items())
    return _IMPORTS, ()


def _count(results: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for case in xml.etree.ElementTree.parse(results).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif skipped is None:
            counts["passed"] += 1
        elif skipped.get("type") == "pytest.xfail":
            counts["failed as expected"] += 1
        else:
            counts["skipped"] += 1
    return counts
