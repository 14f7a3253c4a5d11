"""Runs the tests: ``python test/run.py [FILE ...] [-- PYTEST_ARGUMENT ...]``.

Each test file gets processes of its own: pytest, and one worker of pytest-xdist that runs the
tests. A test that crashes its worker or exceeds the time limit counts as failed, and a new
worker goes on with the test after it. So no crash hides another test, and no file inherits the
state that another one left behind.

The sweeps (``test/generic``) report what they compared with the CPU; the run prints tables of it.

The run fails if a test fails, if a file has no tests, if no test passed at all, if a sweep compared
nothing, or if nothing of the sweeps ran asynchronously.

With --cuda, the device type is CUDA; test/cuda_differences.py lists what differs.

With --sanitizer, each test and each program that a test starts runs under the sanitizer of streams,
and a finding is a failure. Tests that make a mistake on purpose are marked with the kind that has
to be found; the run prints which. By default, those are all files but test/contract and the
sanitizer's own.

With --verify, the fallback compares each call that it has planned with what the CPU's operator
returns by itself. By default, that is the sweep over all operators' results.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import runpy
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

from cuda_differences import ONE_TYPE
from generic.report import empty_variants, is_asynchronous, summary

from torch_openreg.conformance.records import read_records

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parent.parent
_TEST_TIMEOUT_S = 300
_FILE_TIMEOUT_S = 3600
_FULL_TEST_TIMEOUT_S = 900
_FULL_FILE_TIMEOUT_S = 3 * 3600
_MAX_CRASHES = 50
_NO_TESTS = 5  # pytest's exit code
# Not "capture", whose calls raise an error in any case, and not what is off by default.
_FOUND_KINDS = ("race", "lifetime", "host", "graph-input")

# What Ctrl-C has to end: it does not reach process groups other than our own.
_running: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True)
class Outcome:
    """What a test file did.

    Attributes:
        file: the file, relative to the root of the repository.
        is_success: whether nothing failed.
        counts: how many tests "passed", "failed", were "skipped" or "failed as expected".
        seconds: how long it took.
        output: what pytest printed.
        sanitizer: what it reported of the sanitizer, if that was asked for.
    """

    file: Path
    is_success: bool
    counts: Counter[str]
    seconds: float
    output: str
    sanitizer: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        verdict = "ok    " if self.is_success else "FAILED"
        counts = ", ".join(f"{count} {what}" for what, count in self.counts.items()) or "no tests"
        return f"{verdict} {self.file}: {counts} in {self.seconds:.0f} s"


def main() -> int:
    """Runs the program and returns its exit code, 0 if all went well."""
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = _parse(arguments[:split])
    pytest_arguments = arguments[split + 1 :]
    files = options.files or _default_files(options)
    start = time.monotonic()
    outcomes = []
    with (
        tempfile.TemporaryDirectory() as report,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as executor,
    ):
        environment = os.environ | {"OPENREG_TEST_REPORT": report}
        if options.full:
            environment["OPENREG_TEST_FULL"] = "1"
        if options.verify:
            environment["OPENREG_FALLBACK_VERIFY"] = "1"
        if options.sanitizer:
            environment["PYTEST_ADDOPTS"] = f"--openreg-sanitizer={','.join(_FOUND_KINDS)}"
            environment["OPENREG_SANITIZER"] = "collect"  # of programs that tests start
        if options.cuda:
            environment["OPENREG_DEVICE_TYPE"] = "cuda"
            environment["OPENREG_CUDA_NOTICE"] = "0"
        limits = (
            (_FULL_TEST_TIMEOUT_S, _FULL_FILE_TIMEOUT_S)
            if options.full
            else (_TEST_TIMEOUT_S, _FILE_TIMEOUT_S)
        )
        runs = [
            executor.submit(
                _run_file, file, pytest_arguments, environment, options.sanitizer, *limits
            )
            for file in files
        ]
        try:
            for run in concurrent.futures.as_completed(runs):
                outcome = run.result()
                outcomes.append(outcome)
                if not outcome.is_success:
                    print(outcome.output)
                print(outcome, flush=True)
        except KeyboardInterrupt:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in _running:
                os.killpg(process.pid, signal.SIGKILL)
            raise
        records = list(read_records(Path(report)))
    counts: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
    failed = sorted(str(outcome.file) for outcome in outcomes if not outcome.is_success)
    print(
        f"{len(outcomes)} files, "
        + "".join(f"{count} {what}, " for what, count in counts.items())
        + f"{time.monotonic() - start:.0f} s"
    )
    if records:
        print(f"\n{summary(records)}\n")
    is_unchecked = options.sanitizer and not _sum_up_findings(outcomes)
    if is_unchecked:
        print("FAILED: the sanitizer checked no launch")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    if not counts["passed"]:
        print("FAILED: no test passed")
    is_waiting = bool(records) and not any(is_asynchronous(record) for record in records)
    if is_waiting:
        print("FAILED: nothing ran asynchronously")
    empty = empty_variants(records)
    if empty:
        print(f"FAILED: nothing was compared in: {', '.join(empty)}")
    is_failed = failed or not counts["passed"] or is_unchecked or is_waiting or empty
    return 1 if is_failed else 0


def _sum_up_findings(outcomes: Sequence[Outcome]) -> int:
    """Prints what the sanitizer found, and returns how many launches it checked."""
    reports = [outcome.sanitizer for outcome in outcomes if outcome.sanitizer is not None]
    launches = sum(report["launches"] for report in reports)
    findings = [finding for report in reports for finding in report["findings"]]
    marked = [finding for finding in findings if finding["is_marked"]]
    print(
        f"\nsanitizer: {sum(report['tests'] for report in reports)} tests, {launches} launches "
        f"checked, {len(findings) - len(marked)} findings, {len(marked)} that a marker names:"
    )
    for finding in marked:
        print(f"  {finding['kind']}: {finding['test']}")
    print()
    return launches


def _has_cuda() -> bool:
    """Whether torch is built with CUDA or ROCm, for which there is no device type CUDA of ours."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    version = runpy.run_path(str(Path(spec.origin).parent / "version.py"))
    return bool(version.get("cuda") or version.get("hip"))


def _default_files(options: argparse.Namespace) -> list[Path]:
    if options.verify:
        return [_ROOT / "test" / "generic" / "test_ops_forward.py"]
    files = sorted((_ROOT / "test").rglob("test_*.py"))
    if _has_cuda():
        print("test/cuda is left out: this build of torch has CUDA of its own")
        files = [file for file in files if file.parent.name != "cuda"]
    if options.sanitizer:
        files = [file for file in files if _is_for_the_sanitizer(file)]
    return [file for file in files if _is_of_both_types(file)] if options.cuda else files


def _is_of_both_types(file: Path) -> bool:
    # Those of test/cuda choose their device type, and ran with all others.
    path = file.relative_to(_ROOT / "test")
    return path.parts[0] not in ("contract", "cuda") and path.as_posix() not in ONE_TYPE


def _is_for_the_sanitizer(file: Path) -> bool:
    return file.relative_to(_ROOT / "test").parts[0] not in ("conformance", "contract", "sanitizer")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python test/run.py", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all")
    parser.add_argument(
        "-j", "--jobs", type=int, default=os.cpu_count(), help="files at a time (%(default)s)"
    )
    parser.add_argument(
        "--full", action="store_true", help="all samples of all dtypes in test/generic (slow)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="with OPENREG_FALLBACK_VERIFY=1; default: one sweep"
    )
    parser.add_argument(
        "--sanitizer", action="store_true", help="with --openreg-sanitizer; a finding is a failure"
    )
    parser.add_argument(
        "--cuda",
        action="store_true",
        help="with OPENREG_DEVICE_TYPE=cuda; default: all files but those of one type",
    )
    options = parser.parse_args(arguments)
    if options.cuda and _has_cuda():
        parser.error("--cuda: expected a build of torch without CUDA, got one with it")
    return options


def _run_file(
    file: Path,
    pytest_arguments: Sequence[str],
    environment: Mapping[str, str],
    is_sanitized: bool,
    test_timeout_s: int,
    file_timeout_s: int,
) -> Outcome:
    # Idle OpenMP threads would spin and take the processor from the files that run beside.
    environment = {"OMP_WAIT_POLICY": "passive"} | dict(environment)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        sanitizer = Path(folder) / "sanitizer.json"
        exit_code, output = _run_limited(
            [
                *(sys.executable, "-m", "pytest", str(file.resolve())),
                *("-n", "1", f"--max-worker-restart={_MAX_CRASHES}"),
                # Prints the stacks of all threads, then ends the worker.
                *("-o", f"faulthandler_timeout={test_timeout_s}"),
                *("-o", "faulthandler_exit_on_timeout=true"),
                f"--junitxml={results}",
                *([f"--openreg-sanitizer-report={sanitizer}"] if is_sanitized else []),
                *pytest_arguments,
            ],
            environment,
            file_timeout_s,
        )
        counts = _count(results) if results.exists() else Counter()
        report = json.loads(sanitizer.read_text()) if sanitizer.exists() else None
    # A selection, such as -k, may leave nothing of a file.
    is_success = exit_code == 0 or (exit_code == _NO_TESTS and bool(pytest_arguments))
    seconds = time.monotonic() - start
    relative = file.resolve().relative_to(_ROOT)
    return Outcome(relative, is_success, counts, seconds, output, report)


def _run_limited(
    command: Sequence[str], environment: Mapping[str, str], timeout_s: int
) -> tuple[int, str]:
    """Runs a command in a process group of its own and ends the group if it takes too long."""
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    _running.add(process)
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\nended: not done after {timeout_s} s"
    finally:
        _running.discard(process)
    return process.returncode, output


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


if __name__ == "__main__":
    sys.exit(main())
