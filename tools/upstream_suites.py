"""Runs PyTorch's own tests, unmodified, and compares with a list of those that fail.

The programs ``upstream_*.py`` beside this file say which tests, and with which settings. Each file
runs in a separate process, or each test; a test that crashes or exceeds the time limit is one
failure, and the following tests still run.

A list is a TOML file. It names categories, and tests with a category and a reason, ``test`` for one
and ``tests`` for several; ``*`` in a name means any text. A run is wrong if a test fails that is
not listed, if a listed test passes or does not exist, or if nothing ran.
"""

import argparse
import hashlib
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isolated_tests import (
    IMPORT,
    Limits,
    Outcome,
    add_arguments,
    collect_file,
    parse_arguments,
    run_file,
    write_report,
)

__all__ = ["Expected", "Suite", "Verdict", "entry_of", "judge", "read_list", "run_suite"]


@dataclass(frozen=True)
class Suite:
    """Tests of PyTorch, and how they run.

    Attributes:
        program: the file of the program that runs them; the list beside it has the same name
        description: of the program
        folder: the meaning of the argument FOLDER
        files: names of the files to run, those that FOLDER has; all test files by default
        alone: files whose tests run in a process each
        environment: environment variables, in addition to those of this process
        devices: further ones by device type, for tests that run on one of several
        plugin: of pytest, a module beside the program
        has_settings: whether files ``conftest.py`` of FOLDER apply
        name_of: the name of a test in the output and in the list, from pytest's
    """

    program: Path
    description: str
    folder: str
    files: Sequence[str] = ()
    alone: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    plugin: str = ""
    has_settings: bool = False
    name_of: Callable[[str], str] = str

    @property
    def list(self) -> Path:
        """The file with the tests that fail."""
        return self.program.with_suffix(".toml")


@dataclass(frozen=True)
class Expected:
    """A test that fails, and why."""

    test: str
    category: str
    reason: str
    is_in_every_version: bool = True
    passes_at_times: bool = False
    device: str = ""  # the only device type on which it fails

    def is_about(self, test: str) -> bool:
        """Whether the entry lists the test."""
        pattern = ".*".join(map(re.escape, self.test.split("*")))
        return re.fullmatch(pattern, test) is not None


@dataclass(frozen=True)
class Verdict:
    """The tests of all files, by their result."""

    outcomes: Mapping[str, Outcome]
    as_expected: Mapping[str, Expected]
    unexpected: Sequence[str]
    passing: Mapping[str, Expected]
    missing: Sequence[str]

    @property
    def is_right(self) -> bool:
        """Whether tests ran, and only those failed that were to fail."""
        has_run = any(one.kind != "skipped" for one in self.outcomes.values())
        return has_run and not (self.unexpected or self.passing or self.missing)


def run_suite(suite: Suite) -> int:
    """Runs a program of this kind and returns its exit code."""
    options = _options(suite)
    folder = Path(options.folder).resolve()
    categories, expected = read_list(options.expected, options.device)
    names = _names(suite, folder, options.files)
    if not names:
        print(f"nothing ran: {folder} has no test files", file=sys.stderr)
        return 1
    outcomes: dict[str, Outcome] = {}
    for name in names:
        found = _run(suite, folder / name, folder, options, expected)
        outcomes.update(found)
        _print_file(suite.name_of(name), found, expected)
    files = [suite.name_of(name) for name in names] if options.files or suite.files else ()
    verdict = judge(outcomes, expected, files)
    _print_verdict(verdict, categories, len(names))
    write_report(options.report, outcomes)
    return 0 if verdict.is_right else 1


def _options(suite: Suite) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python tools/{suite.program.name}",
        description=suite.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser, suite.folder)
    parser.add_argument(
        "--expected",
        type=Path,
        default=suite.list,
        metavar="LIST",
        help=f"default: {suite.list.name}",
    )
    parser.add_argument(
        "--sample",
        type=int,
        metavar="COUNT",
        help="of each file, so many tests, the same in each run, and those of the list",
    )
    parser.add_argument(
        "--share",
        type=float,
        metavar="PERCENT",
        help="of all tests, this part, the same in each run, and those of the list",
    )
    parser.set_defaults(device="")
    if suite.devices:
        parser.add_argument(
            "--device",
            choices=list(suite.devices),
            default=next(iter(suite.devices)),
            help="the device type (default: %(default)s)",
        )
    return parse_arguments(parser)


def _names(suite: Suite, folder: Path, names: Sequence[str]) -> list[str]:
    if names:
        return list(names)
    if suite.files:
        return [name for name in suite.files if (folder / name).is_file()]
    return [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("test_*.py"))]


def _run(
    suite: Suite,
    file: Path,
    folder: Path,
    options: argparse.Namespace,
    expected: Mapping[str, Expected],
) -> dict[str, Outcome]:
    environment = {**suite.environment, **suite.devices.get(options.device, {})}
    with tempfile.TemporaryDirectory() as scratch:
        # So that no settings of a project around the folder apply.
        settings = Path(scratch, "pytest.ini")
        settings.write_text("[pytest]\n", encoding="utf-8")
        arguments = ["-c", str(settings)]
        if not suite.has_settings:
            arguments.append("--noconftest")
        if suite.plugin:
            arguments += ["-p", suite.plugin]
        groups: list[list[str] | None] = [None]
        is_alone = file.relative_to(folder).as_posix() in suite.alone
        if is_alone or options.sample or options.share:
            tests = collect_file(file, folder, arguments, environment)
            tests = [test for test in tests if not test.endswith(f"::{IMPORT}")]
            if tests:  # else the file's error is the outcome
                if options.sample or options.share:
                    tests = _sample(suite, tests, options, expected)
                groups = [[test] for test in tests] if is_alone else [tests] if tests else []
        outcomes: dict[str, Outcome] = {}
        for only in groups:
            outcomes |= run_file(
                file,
                folder,
                arguments=arguments,
                environment=environment,
                only=only,
                limits=Limits(test_s=options.timeout),
            )
    return {suite.name_of(test): one for test, one in outcomes.items()}


def _sample(
    suite: Suite,
    tests: Sequence[str],
    options: argparse.Namespace,
    expected: Mapping[str, Expected],
) -> list[str]:
    """Chooses tests by their names alone, and adds those that are listed."""
    names = {test: suite.name_of(test) for test in tests}
    hashes = {test: hashlib.sha256(names[test].encode()).digest() for test in tests}
    if options.share:
        limit = options.share / 100 * 2**64
        chosen = {test for test in tests if int.from_bytes(hashes[test][:8], "big") < limit}
    else:
        chosen = set(sorted(tests, key=hashes.__getitem__)[: options.sample])
    return [test for test in tests if test in chosen or entry_of(names[test], expected)]


def read_list(path: Path, device: str = "") -> tuple[dict[str, str], dict[str, Expected]]:
    """Reads a list of expected failures: its categories, and its tests by name.

    The tests are those for all device types, and those for this one.
    """
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    categories: dict[str, str] = content.get("categories", {})
    expected: dict[str, Expected] = {}
    for entry in content.get("expected", []):
        shared = {key: value for key, value in entry.items() if key != "tests"}
        for given in [{"test": test} for test in entry["tests"]] if "tests" in entry else [{}]:
            try:
                one = Expected(**shared, **given)
            except TypeError as error:
                raise SystemExit(
                    f"{path}: expected a test, a category and a reason, got {entry}"
                ) from error
            if one.category not in categories:
                raise SystemExit(
                    f"{path}: {one.test}: expected one of {', '.join(categories)} as category, "
                    f"got {one.category!r}"
                )
            if not one.reason.strip():
                raise SystemExit(f"{path}: {one.test}: expected a reason")
            if one.device not in ("", device):
                continue
            if one.test in expected:
                raise SystemExit(f"{path}: {one.test} is listed twice")
            expected[one.test] = one
    return categories, expected


def entry_of(test: str, expected: Mapping[str, Expected]) -> Expected | None:
    """Returns the entry that lists a test, or None; one with its full name comes first."""
    if test in expected:
        return expected[test]
    return next((one for one in expected.values() if one.is_about(test)), None)


def judge(
    outcomes: Mapping[str, Outcome], expected: Mapping[str, Expected], files: Sequence[str]
) -> Verdict:
    """Compares how tests ended with the list; with that of some files, unless they are all."""
    entries = {name: entry_of(name, expected) for name in outcomes}
    listed = [one for one in expected.values() if not files or one.test.partition("::")[0] in files]
    used = {one.test for one in entries.values() if one is not None}
    failed = sorted(name for name, outcome in outcomes.items() if outcome.is_failure)
    return Verdict(
        outcomes=outcomes,
        as_expected={name: one for name in failed if (one := entries[name]) is not None},
        unexpected=[name for name in failed if entries[name] is None],
        passing={
            name: one
            for name, outcome in outcomes.items()
            if outcome.kind == "passed"
            and (one := entries[name]) is not None
            and not one.passes_at_times
        },
        missing=[one.test for one in listed if one.test not in used and one.is_in_every_version],
    )


def _print_file(
    name: str, outcomes: Mapping[str, Outcome], expected: Mapping[str, Expected]
) -> None:
    found = Counter(
        "failed as expected" if one.is_failure and entry_of(test, expected) else one.kind
        for test, one in outcomes.items()
    )
    print(f"{name}: {', '.join(f'{count} {kind}' for kind, count in found.items())}", flush=True)


def _print_verdict(verdict: Verdict, categories: Mapping[str, str], file_count: int) -> None:
    for name in verdict.unexpected:
        outcome = verdict.outcomes[name]
        print(f"\n--- {name}: {outcome.kind}\n{outcome.text}")
    for name, one in verdict.passing.items():
        print(f"passes, but is listed: {name}: {one.reason}")
    for name in verdict.missing:
        print(f"is listed, but does not exist: {name}")
    by_category = Counter(one.category for one in verdict.as_expected.values())
    for category, count in by_category.most_common():
        print(f"failed as listed: {count} because it {categories[category]}")
    kinds = Counter(one.kind for one in verdict.outcomes.values())
    print(
        f"{len(verdict.outcomes)} tests in {file_count} files: {kinds['passed']} passed, "
        f"{kinds['skipped']} skipped, {kinds['xfailed']} failed as the test itself expects, "
        f"{len(verdict.as_expected)} failed as listed, {len(verdict.unexpected)} failed, "
        f"{len(verdict.passing)} passed unexpectedly, {len(verdict.missing)} missing"
    )
    if not any(one.kind != "skipped" for one in verdict.outcomes.values()):
        print("nothing ran")
