"""Runs a sample of another project's tests, on the CPU and then on this device, and compares.

``python tools/test_suites.py PROJECT FOLDER [FILE ...]``

The folder is a checkout of the project, of the release that is installed; FILE names test files in
it, all of them by default. The table in this file has, for each project, the place of its tests and
the settings that select the device. Each test file runs in a separate process; a test that crashes
or exceeds the time limit is one failure, and the following tests still run.

A sample depends on its size and seed alone. Each of its tests runs on the CPU first. A test that
fails only on the device is a difference; the exit code is 1 if there are any, or if no test passed
on the device. docs/test_suites.md has the results for each project, with reasons.
"""

import argparse
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isolated_tests import (
    Limits,
    Outcome,
    add_arguments,
    collect_file,
    parse_arguments,
    run_file,
    write_report,
)

__all__ = ["PROJECTS", "Project", "main"]

_OPENREG = {"OPENREG_DEVICE_TYPE": "openreg"}
_CUDA = {"OPENREG_DEVICE_TYPE": "cuda", "OPENREG_CUDA_NOTICE": "0"}
_CPU = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
_OFFLINE = {"HF_HUB_OFFLINE": "1"}

# Without the plug-ins that a project's own options name, such as those for coverage.
_NO_OPTIONS = ("-o", "addopts=")

# For suites that take the functions of a device from a file.
_SPEC = Path(__file__).resolve().parent / "openreg_spec.py"


@dataclass(frozen=True)
class Project:
    """How the tests of a project run.

    Attributes:
        tests: the folder of its tests
        device: environment variables for the run on the device
        cpu: environment variables for the run on the CPU, instead of those
        device_arguments, cpu_arguments: arguments for pytest
        device_name: how names of tests call the device where they call the CPU "cpu", if they do
        needs: what to install beside the project
    """

    tests: str
    device: Mapping[str, str]
    cpu: Mapping[str, str] = field(default_factory=dict)
    device_arguments: Sequence[str] = ()
    cpu_arguments: Sequence[str] = ()
    device_name: str | None = None
    needs: str = ""


# Projects whose lists of devices can be extended by a setting run as openreg; the others as CUDA.
PROJECTS = {
    "accelerate": Project("tests", {**_CUDA, **_OFFLINE}, _OFFLINE, needs="parameterized"),
    "deepspeed": Project(
        "tests/unit", {**_CUDA, "DS_ACCELERATOR": "cuda"}, {"DS_ACCELERATOR": "cpu"}
    ),
    "diffusers": Project(
        "tests",
        {
            **_OPENREG,
            **_OFFLINE,
            "DIFFUSERS_TEST_DEVICE": "openreg",
            "DIFFUSERS_TEST_DEVICE_SPEC": str(_SPEC),
        },
        {**_OFFLINE, "DIFFUSERS_TEST_DEVICE": "cpu"},
        needs="transformers accelerate",
    ),
    "einops": Project(
        "einops/tests",
        {**_CUDA, "EINOPS_TEST_BACKENDS": "torch"},
        {"EINOPS_TEST_BACKENDS": "torch"},
    ),
    "fairscale": Project("tests", _CUDA, device_name="cuda", needs="parameterized"),
    "gpytorch": Project("test", _CUDA, needs="linear_operator scipy"),
    "ignite": Project("tests/ignite", _CUDA, device_name="cuda"),
    "kornia": Project(
        "tests",
        _CUDA,
        device_arguments=["--device=cuda"],
        cpu_arguments=["--device=cpu"],
        device_name="cuda",
    ),
    # Without the setting, tests for CUDA are skipped and others start pytest anew on each device.
    "lightning-fabric": Project(
        "tests/tests_fabric",
        {**_CUDA, "RUN_ONLY_CUDA_TESTS": "1"},
        {"RUN_ONLY_CUDA_TESTS": "1"},
        needs="lightning[test]",
    ),
    "peft": Project("tests", {**_CUDA, **_OFFLINE}, _OFFLINE, needs="transformers accelerate"),
    "tensordict": Project("test", _CUDA, device_name="cuda:0"),
    "timm": Project(
        "tests",
        {**_OPENREG, "TORCH_DEVICE": "openreg", "TORCH_BACKEND": "torch_openreg"},
        {"TORCH_DEVICE": "cpu"},
        needs="torchvision",
    ),
    "torch_geometric": Project(
        "test",
        {**_OPENREG, "TORCH_DEVICE": "openreg", "TORCH_BACKEND": "torch_openreg"},
        device_name="openreg",
    ),
    "torchmetrics": Project("tests/unittests", _CUDA, needs="cachier scikit-learn scipy"),
    "torchrl": Project("test", _CUDA, device_name="cuda:0"),
    "transformers": Project(
        "tests",
        {
            **_OPENREG,
            **_OFFLINE,
            "TRANSFORMERS_TEST_DEVICE": "openreg",
            "TRANSFORMERS_TEST_DEVICE_SPEC": str(_SPEC),
        },
        {**_OFFLINE, "TRANSFORMERS_TEST_DEVICE": "cpu"},
        needs="parameterized",
    ),
}


@dataclass(frozen=True)
class Comparison:
    """How one test ended on the CPU and on the device."""

    cpu: Outcome
    device: Outcome

    @property
    def is_difference(self) -> bool:
        """Whether the test fails on the device alone; on the CPU it may be skipped."""
        return not self.cpu.is_failure and self.device.is_failure


def main() -> int:
    """Runs the program and returns its exit code."""
    options = _options()
    project, folder = PROJECTS[options.project], Path(options.folder).resolve()
    names = options.files or [
        file.relative_to(folder).as_posix()
        for file in sorted((folder / project.tests).rglob("test_*.py"))
    ]
    sample = _sample(project, folder, names, options.sample, options.seed)
    limits = Limits(test_s=options.timeout)
    comparisons: dict[str, Comparison] = {}
    for name, tests in sample.items():
        found = _compare_file(project, folder, name, tests, limits)
        kinds = Counter(f"{one.cpu.kind}/{one.device.kind}" for one in found.values())
        print(
            f"{name}: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}", flush=True
        )
        comparisons.update(found)
    write_report(options.report, comparisons)
    return _report(comparisons)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python tools/test_suites.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("project", metavar="PROJECT", help=", ".join(PROJECTS))
    add_arguments(parser, "with the project's sources and tests")
    parser.add_argument("--sample", type=int, default=200, help="number of tests (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    options = parse_arguments(parser)
    if options.project not in PROJECTS:
        parser.error(f"expected one of {', '.join(PROJECTS)}, got {options.project!r}")
    return options


def _sample(
    project: Project, folder: Path, names: Sequence[str], size: int, seed: int
) -> dict[str, list[str]]:
    """Returns the tests to run, by file, of those that exist on the CPU."""
    collected = {
        name: collect_file(
            folder / name, folder, [*_NO_OPTIONS, *project.cpu_arguments], {**_CPU, **project.cpu}
        )
        for name in names
    }
    tests = [(name, test) for name, found in collected.items() for test in found]
    chosen = defaultdict(list)
    for name, test in sorted(random.Random(seed).sample(tests, min(size, len(tests)))):
        chosen[name].append(test)
    print(f"{min(size, len(tests))} of {len(tests)} tests in {len(names)} files", flush=True)
    return chosen


def _compare_file(
    project: Project, folder: Path, name: str, tests: Sequence[str], limits: Limits
) -> dict[str, Comparison]:
    on_cpu = run_file(
        folder / name,
        folder,
        arguments=[*_NO_OPTIONS, *project.cpu_arguments],
        environment={**_CPU, **project.cpu},
        only=tests,
        limits=limits,
    )
    on_device = run_file(
        folder / name,
        folder,
        arguments=[*_NO_OPTIONS, *project.device_arguments],
        environment=project.device,
        only=[on_the_device(test, project.device_name) for test in tests],
        limits=limits,
    )
    absent = Outcome("failed", "the test does not exist on the device")
    found = {
        test: Comparison(
            on_cpu.get(test, Outcome("failed", "the test does not exist on the CPU")),
            on_device.get(on_the_device(test, project.device_name), absent),
        )
        for test in tests
    }
    # What happened outside of the tests.
    others = {**on_cpu, **on_device}.keys() - {
        *tests,
        *(on_the_device(test, project.device_name) for test in tests),
    }
    right = Outcome("passed")
    for other in sorted(others):
        found[other] = Comparison(on_cpu.get(other, right), on_device.get(other, right))
    return found


def on_the_device(test: str, name: str | None) -> str:
    """Returns the name of a test on the device: its parameter ``cpu`` is the device's name."""
    if name is None or "[" not in test:
        return test
    function, _, parameters = test.partition("[")
    return f"{function}[{re.sub(r'(?<![a-z0-9])cpu(?![a-z0-9])', name, parameters)}"


def _report(comparisons: Mapping[str, Comparison]) -> int:
    differences = {name: one for name, one in comparisons.items() if one.is_difference}
    by_text: dict[str, list[str]] = defaultdict(list)
    for name, one in differences.items():
        by_text[one.device.last_line or one.device.kind].append(name)
    for text, names in sorted(by_text.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(names)} failed on the device alone: {text}")
        print("\n".join(f"  {name}" for name in names))
    passed = sum(one.device.kind == "passed" for one in comparisons.values())
    used = sum(one.device.allocations > 0 for one in comparisons.values())
    failed = [one.cpu.last_line for one in comparisons.values() if one.cpu.is_failure]
    for text, count in Counter(failed).most_common(3):
        print(f"\n{count} failed on the CPU: {text}")
    print(
        f"\n{len(comparisons)} tests: {passed} passed on the device, {used} used its memory; "
        f"{len(failed)} failed on the CPU, {len(differences)} on the device alone"
    )
    return 0 if passed and not differences else 1


if __name__ == "__main__":
    sys.exit(main())
