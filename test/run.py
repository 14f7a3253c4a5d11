"""Runs the tests: ``python test/run.py [FILE ...] [-- PYTEST_ARGUMENT ...]``.

By default: a sample of the tests, always the same one, of which each file and each sweep has a
part; about nine minutes on two cores that have nothing else to do. The last lines have the number
of tests left out; --all runs all tests. With FILE or PYTEST_ARGUMENT, all tests run that these
leave. test/sample.py describes the sample, and what to do for a new file. --sample SCALE runs that
many times the tests of the sample, also of FILEs, or with --cuda or --sanitizer.

With --quick, a selection of a minute that checks the installation. Its last line is the verdict.

Each test file has a separate process, so that files do not share state: a child of a server that
has imported torch, see test/fork_server.py. If a test ends this process or exceeds the time limit,
the file runs anew in a worker of pytest-xdist: this test counts as failed, and a new worker
continues with the next one. So a crash does not hide other tests.

The sweeps (test/generic) report their comparisons with the CPU; the run prints tables of them.

The run fails if a test fails, if a file has no tests, if no test passed at all, if a sweep compared
nothing, or if nothing of the sweeps ran asynchronously.

With --full, the sweeps run all samples of all dtypes, which takes hours.

With --cuda, the device type is CUDA; test/cuda_differences.py lists what differs.

With --sanitizer, each test and each program that a test starts runs under the sanitizer of streams,
and a finding is a failure. Tests that make a mistake on purpose are marked with the kind that has
to be found; the run prints which. By default, those are all files but test/contract and the
sanitizer's own.

With --verify, the fallback compares each planned call with the result of the CPU's operator. By
default, that is the sweep over all operators' results.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_differences import ONE_TYPE
from processes import Limits, Outcome, Runner
from sample import share_of

# Modules outside of the standard library and this folder are imported when main has found them.

__all__ = ["counts_of_samples", "left_out", "main", "missing_requirement", "verdict"]

_ROOT = Path(__file__).resolve().parent.parent
_LIMITS = Limits(test_s=300, file_s=3600)
_FULL_LIMITS = Limits(test_s=900, file_s=3 * 3600)
# Not "capture", whose calls always raise an error, and not the kinds that are off by default.
_FOUND_KINDS = ("race", "lifetime", "host", "graph-input")
# --quick: what each run of pytest shows, and its arguments.
_QUICK: dict[str, tuple[str, ...]] = {
    "devices, streams and memory": (
        *("--pyargs", "torch_openreg.conformance", "--device=openreg"),
        "--conformance-chapter=guard,hooks,memory,streams,events",
    ),
    "import": (
        *("test/python/test_autoload.py", "test/python/test_extension.py"),
        *("-k", "with_autoload_after_torch or TestPaths"),
    ),
    "operators": ("test/core/test_device_generic.py",),
    "autograd": ("test/generic/test_autograd.py",),
    "plug-in of pytest": (
        "test/python/test_pytest_plugin.py",
        *("-k", "suite_for_cuda_runs_option or nothing_happens"),
    ),
}


def main() -> int:
    """Runs the program and returns its exit code, 0 if all went well."""
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    pytest_arguments = arguments[split + 1 :]
    options = _parse(arguments[:split], bool(pytest_arguments))
    missing = missing_requirement()
    if missing is not None:
        print(f"test/run.py: {missing}", file=sys.stderr)
        return 2
    if options.quick:
        return _run_quick(options)
    return _run_files(options, pytest_arguments)


def missing_requirement() -> str | None:
    """The missing requirements of a run, and the command to install them, or None."""
    if importlib.util.find_spec("torch_openreg") is None:
        return (
            f"expected torch_openreg to be installed, but {sys.executable} has none; README.md "
            "has the command"
        )
    requirements = _ROOT / "requirements-test.txt"
    missing = []
    for line in requirements.read_text(encoding="utf-8").splitlines():
        name = re.split("[=<>#]", line, maxsplit=1)[0].strip()
        try:
            importlib.metadata.version(name) if name else None
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if not missing:
        return None
    return (
        f"expected what the tests need, but {', '.join(missing)} is missing; run: "
        f"{sys.executable} -m pip install -r {os.path.relpath(requirements)}"
    )


def _run_quick(options: argparse.Namespace) -> int:
    """Runs the tests of an installation; the last line is the result."""
    start = time.monotonic()
    outcomes = Runner(os.environ, options.jobs, _LIMITS).run(_QUICK)
    print(f"\n{verdict(outcomes, time.monotonic() - start)}")
    return 0 if all(outcome.is_success for outcome in outcomes) else 1


def verdict(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The last line of --quick."""
    failed = [outcome.name for outcome in outcomes if not outcome.is_success]
    passed = sum(outcome.counts["passed"] for outcome in outcomes)
    if failed or not passed:
        return (
            f"FAILED: torch_openreg does not work here: {', '.join(failed) or 'no test passed'} "
            f"({passed} tests passed, {seconds:.0f} s)"
        )
    names = ", ".join(outcome.name for outcome in outcomes)
    return f"OK: torch_openreg works here: {names} ({passed} tests passed, {seconds:.0f} s)"


def _run_files(options: argparse.Namespace, pytest_arguments: Sequence[str]) -> int:
    from report import empty_variants, is_asynchronous, summary

    from torch_openreg.conformance.records import read_records

    files = [file.resolve() for file in options.files] or _default_files(options)
    may_be_empty = bool(pytest_arguments)
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as report,
        tempfile.TemporaryDirectory() as sample_counts,
    ):
        environment = os.environ | {"OPENREG_TEST_REPORT": report}
        if options.full:
            environment["OPENREG_TEST_FULL"] = "1"
        if options.verify:
            environment["OPENREG_FALLBACK_VERIFY"] = "1"
        if options.sanitizer:
            # Some files use devices in the programs that they start only.
            environment["PYTEST_ADDOPTS"] = (
                f"--openreg-sanitizer={','.join(_FOUND_KINDS)} --openreg-allow-unchecked"
            )
            environment["OPENREG_SANITIZER"] = "collect"  # of programs that tests start
        if options.cuda:
            environment["OPENREG_DEVICE_TYPE"] = "cuda"
            environment["OPENREG_CUDA_NOTICE"] = "0"
        if options.sample is not None:
            pytest_arguments = [
                f"--openreg-sample={options.sample:g}",
                f"--openreg-sample-counts={sample_counts}",
                *pytest_arguments,
            ]
        runs = {
            file.relative_to(_ROOT).as_posix(): (str(file), *pytest_arguments) for file in files
        }
        runner = Runner(
            environment,
            options.jobs,
            _FULL_LIMITS if options.full else _LIMITS,
            is_sanitized=options.sanitizer,
            durations=options.durations,
            # A selection, such as -k, may leave nothing of a file.
            may_be_empty=may_be_empty,
        )
        outcomes = runner.run(runs)
        records = list(read_records(Path(report)))
        counts_by_file = counts_of_samples(Path(sample_counts))
    counts: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
    failed = sorted(outcome.name for outcome in outcomes if not outcome.is_success)
    print(
        f"{len(outcomes)} files, "
        + "".join(f"{count} {what}, " for what, count in counts.items())
        + f"{time.monotonic() - start:.0f} s"
    )
    if records:
        print(f"\n{summary(records)}\n")
    if options.sample is not None:
        print(left_out(counts_by_file))
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


def counts_of_samples(folder: Path) -> list[dict[str, Any]]:
    """Returns what --openreg-sample-counts has written of each file."""
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def left_out(counts: Iterable[Mapping[str, Any]]) -> str:
    """Returns a table of the tests that a sample leaves out, by folders, as text."""
    folders: dict[str, Counter[str]] = {}
    for count in counts:
        folder = (Path("test") / count["file"]).parent.as_posix()
        row = folders.setdefault(folder, Counter())
        row["tests"] += count["tests"]
        row["left out"] += count["left_out"]
        row["files"] += 1
        row["files divided"] += count["left_out"] > 0
    total = sum(folders.values(), Counter[str]())
    lines = [
        f"left out: {total['left out']} of {total['tests']} tests, in {total['files divided']} of "
        f"{total['files']} files; `python test/run.py --all` runs all tests"
    ]
    lines += [
        f"  {folder}: {row['left out']} of {row['tests']} tests, in {row['files divided']} of "
        f"{row['files']} files"
        for folder, row in sorted(folders.items())
        if row["left out"]
    ]
    return "\n".join(lines)


def _sum_up_findings(outcomes: Sequence[Outcome]) -> int:
    """Prints the sanitizer's findings, and returns the number of checked launches."""
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


def _default_files(options: argparse.Namespace) -> list[Path]:
    """The files to run, those first that take long, so that they do not end last."""
    return sorted(_all_files(options), key=share_of)


def _all_files(options: argparse.Namespace) -> list[Path]:
    if options.verify:
        return [_ROOT / "test" / "generic" / "test_ops_forward.py"]
    files = sorted((_ROOT / "test").rglob("test_*.py"))
    if options.sanitizer:
        files = [file for file in files if _is_for_the_sanitizer(file)]
    return [file for file in files if _is_of_both_types(file)] if options.cuda else files


def _is_of_both_types(file: Path) -> bool:
    # Those of test/cuda choose their device type, and ran with all others.
    path = file.relative_to(_ROOT / "test")
    return path.parts[0] not in ("contract", "cuda") and path.as_posix() not in ONE_TYPE


def _is_for_the_sanitizer(file: Path) -> bool:
    folder = file.relative_to(_ROOT / "test").parent.as_posix()
    return folder not in ("conformance", "contract", "extras/sanitizer")


class _ParagraphsFormatter(argparse.HelpFormatter):
    """Keeps the paragraphs of a description, and fills each."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.replace("``", "").strip().split("\n\n")
        fill = super()._fill_text
        return "\n\n".join(fill(one, width, indent) for one in paragraphs)


def _parse(arguments: Sequence[str], has_pytest_arguments: bool) -> argparse.Namespace:
    """The options; `sample` is what the shares of files are multiplied by, None for all tests."""
    parser = argparse.ArgumentParser(
        prog="python test/run.py",
        usage="%(prog)s [OPTION ...] [FILE ...] [-- PYTEST_ARGUMENT ...]",
        description=__doc__,
        formatter_class=_ParagraphsFormatter,
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="all tests of these; default: see above"
    )
    parser.add_argument(
        "-j", "--jobs", type=int, default=os.cpu_count(), help="files at a time (%(default)s)"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--quick", action="store_true", help="whether the installation is right, in a minute"
    )
    which.add_argument("--all", action="store_true", help="all tests")
    which.add_argument(
        "--full",
        action="store_true",
        help="all tests, with all samples of all dtypes in test/generic (slow)",
    )
    which.add_argument(
        "--sample",
        type=float,
        metavar="SCALE",
        help="a sample, the default run's times SCALE; of FILEs, too, or with other options",
    )
    parser.add_argument("--durations", type=Path, metavar="FOLDER", help="write JUnit files")
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
    missing = [str(file) for file in options.files if not file.exists()]
    if missing:
        parser.error(f"expected files of tests, but {', '.join(missing)} does not exist")
    is_special = options.verify or options.sanitizer or options.cuda
    if options.quick and (options.files or has_pytest_arguments or is_special):
        parser.error("--quick: expected no files, arguments of pytest or other runs beside it")
    if options.sample is not None and not options.sample > 0:
        parser.error(f"--sample: expected a number above 0, got {options.sample:g}")
    is_whole = options.all or options.full or options.files or has_pytest_arguments or is_special
    if options.sample is None and not is_whole:
        options.sample = 1.0
    return options


if __name__ == "__main__":
    sys.exit(main())
