"""Runs PyTorch's own tests of its OpenReg, unmodified, on this backend.

``python tools/upstream_openreg.py FOLDER [FILE ...]``

The folder is ``test/cpp_extensions/open_registration_extension/torch_openreg/tests`` of a checkout
of PyTorch; FILE names test files in it, all of them by default. The tests are PyTorch's and no part
of this repository. Each file runs in a process of its own; a test that crashes or exceeds the time
limit is one failure, and the tests after it run.

``upstream_openreg.toml`` lists the tests that fail for a known reason. The exit code is 1 if a test
fails that is not listed, if a listed test passes or does not exist, or if nothing ran. With FILE,
the part of the list that is about these files counts.
"""

import argparse
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isolated_tests import (
    Limits,
    Outcome,
    add_arguments,
    parse_arguments,
    run_file,
    write_report,
)

__all__ = ["main"]

_LIST = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Expected:
    """A test that fails, and why."""

    test: str
    category: str
    reason: str
    is_in_every_version: bool = True
    passes_at_times: bool = False


@dataclass(frozen=True)
class Verdict:
    """The tests of all files, by what they mean for the run."""

    outcomes: Mapping[str, Outcome]
    as_expected: Sequence[str]
    unexpected: Sequence[str]
    passing: Sequence[str]
    missing: Sequence[str]

    @property
    def is_right(self) -> bool:
        """Whether tests ran, and only those failed that were to fail."""
        has_run = any(one.kind != "skipped" for one in self.outcomes.values())
        return has_run and not (self.unexpected or self.passing or self.missing)


def main() -> int:
    """Runs the program and returns its exit code."""
    options = _options()
    folder = Path(options.folder).resolve()
    categories, expected = read_list(options.expected)
    files = _files(folder, options.files)
    if not files:
        print(f"nothing ran: {folder} has no test files", file=sys.stderr)
        return 1
    limits = Limits(test_s=options.timeout)
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as scratch:
        # So that no settings of a project around the folder apply.
        settings = Path(scratch, "pytest.ini")
        settings.write_text("[pytest]\n", encoding="utf-8")
        for file in files:
            found = run_file(file, folder, arguments=["-c", str(settings)], limits=limits)
            outcomes.update(found)
            _print_file(file.relative_to(folder), found, expected)
    verdict = judge(outcomes, expected, options.files)
    _print_verdict(verdict, expected, categories, len(files))
    write_report(options.report, outcomes)
    return 0 if verdict.is_right else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python tools/upstream_openreg.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser, "with PyTorch's tests of OpenReg")
    parser.add_argument(
        "--expected", type=Path, default=_LIST, metavar="LIST", help=f"default: {_LIST.name}"
    )
    return parse_arguments(parser)


def _files(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / name for name in names] if names else sorted(folder.rglob("test_*.py"))


def read_list(path: Path) -> tuple[dict[str, str], dict[str, Expected]]:
    """Reads a list of expected failures: its categories, and its tests by name."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    categories: dict[str, str] = content.get("categories", {})
    expected: dict[str, Expected] = {}
    for entry in content.get("expected", []):
        try:
            one = Expected(**entry)
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
        if one.test in expected:
            raise SystemExit(f"{path}: {one.test} is listed twice")
        expected[one.test] = one
    return categories, expected


def judge(
    outcomes: Mapping[str, Outcome], expected: Mapping[str, Expected], files: Sequence[str]
) -> Verdict:
    """Compares how tests ended with the list; with that of some files, unless they are all."""
    listed = [name for name in expected if not files or name.partition("::")[0] in files]
    failed = {name for name, outcome in outcomes.items() if outcome.is_failure}
    passed = {name for name, outcome in outcomes.items() if outcome.kind == "passed"}
    return Verdict(
        outcomes=outcomes,
        as_expected=sorted(failed & expected.keys()),
        unexpected=sorted(failed - expected.keys()),
        passing=[name for name in listed if name in passed and not expected[name].passes_at_times],
        missing=[
            name for name in listed if name not in outcomes and expected[name].is_in_every_version
        ],
    )


def _print_file(
    file: Path, outcomes: Mapping[str, Outcome], expected: Mapping[str, Expected]
) -> None:
    found = Counter(
        "failed as expected" if one.is_failure and name in expected else one.kind
        for name, one in outcomes.items()
    )
    print(f"{file}: {', '.join(f'{count} {kind}' for kind, count in found.items())}", flush=True)


def _print_verdict(
    verdict: Verdict,
    expected: Mapping[str, Expected],
    categories: Mapping[str, str],
    file_count: int,
) -> None:
    for name in verdict.unexpected:
        outcome = verdict.outcomes[name]
        print(f"\n--- {name}: {outcome.kind}\n{outcome.text}")
    for name in verdict.passing:
        print(f"passes, but is listed: {name}: {expected[name].reason}")
    for name in verdict.missing:
        print(f"is listed, but does not exist: {name}")
    by_category = Counter(expected[name].category for name in verdict.as_expected)
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


if __name__ == "__main__":
    sys.exit(main())
