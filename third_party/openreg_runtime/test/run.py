"""Builds the runtime and its tests with g++ and runs them.

Each configuration (plain, thread sanitizer, address and undefined-behavior sanitizers) builds the
library's objects once and links every test program with them. Each test runs in a separate process.
The contract tests at the end check the sources and the built library.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
SOURCE = ROOT / "src"
TEST = ROOT / "test"
EXAMPLE = ROOT / "example"

JOBS = 2
TEST_TIMEOUT_S = 120.0
COMPILE_TIMEOUT_S = 600.0

# Units that include each other: a device has streams, a stream its device and worker, and so on.
MAX_CIRCLE = 5
# The folders of src, from the lowest: the files of each include its own and those below.
FOLDERS = ("base", "memory", "queue", "graph", "extras")

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
CXX = ["g++", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-pthread", *WARNINGS]
C99 = ["gcc", "-std=c99", *WARNINGS]

# Our fault handler and the tests of it come before the sanitizers' own.
SANITIZER_ENVIRONMENT = {
    "TSAN_OPTIONS": "halt_on_error=1:handle_segv=0:allocator_may_return_null=1:atexit_sleep_ms=0",
    "ASAN_OPTIONS": "handle_segv=0:detect_leaks=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}

# Tests that leak, by contract: processes that end with work pending, threads that call the library
# while they end, and threads of destroyed streams that are ending when the process does.
LEAKING_TESTS = (
    "test_process.",
    "test_fault.",
    "test_ipc.exit_does_not_wait",
    "test_ipc.touching_",
    "test_schedule.a_process_ends_with_work_pending",
    "test_error.last_error_works_while_a_thread_ends",
    "stress",
)


@dataclass(frozen=True)
class Configuration:
    """One way to compile everything."""

    name: str
    flags: list[str]


CONFIGURATIONS = {
    name: Configuration(name, flags.split())
    for name, flags in {
        "none": "-O2",
        "thread": "-O1 -g -fsanitize=thread",
        # The check of virtual tables probes memory through a pipe: it fails where a test takes
        # file descriptors away.
        "address": "-O1 -g -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover",
    }.items()
}


@dataclass
class Case:
    """One test: a name and what runs it. The result is an error text, empty if it passed."""

    name: str
    run: Callable[[], str]


@dataclass
class Build:
    """What one configuration builds into a directory."""

    configuration: Configuration
    directory: Path
    objects: list[Path] = field(default_factory=list)
    programs: list[Path] = field(default_factory=list)

    @property
    def library(self) -> Path:
        return self.directory / "libopenreg.so"


class BuildError(Exception):
    """A compiler or linker failed; contains its output."""


def run_compiler(command: list[str]) -> None:
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
    )
    if result.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{result.stderr}")


def run_compilers(commands: Iterable[list[str]]) -> None:
    with concurrent.futures.ThreadPoolExecutor(JOBS) as executor:
        for _ in executor.map(run_compiler, commands):
            pass


def build(configuration: Configuration, directory: Path) -> Build:
    """Compiles the library, the test programs, and the C programs against the shared library."""
    directory.mkdir(parents=True, exist_ok=True)
    result = Build(configuration, directory)
    flags = configuration.flags
    includes = [f"-I{INCLUDE}", f"-I{SOURCE}"]

    def compile_command(source: Path) -> list[str]:
        target = str(directory / f"{source.stem}.o")
        return [*CXX, *flags, *includes, "-c", str(source), "-o", target]

    sources = sorted(SOURCE.rglob("*.cpp"))
    tests = sorted([*TEST.glob("test_*.cpp"), TEST / "stress.cpp", TEST / "fuzz.cpp"])
    run_compilers(compile_command(source) for source in [*sources, *tests])
    result.objects = [directory / f"{source.stem}.o" for source in sources]
    objects = [str(path) for path in result.objects]

    links = [[*CXX, *flags, "-shared", *objects, "-o", str(result.library)]]
    for test in tests:
        program = directory / test.stem
        links.append([*CXX, *flags, str(program) + ".o", *objects, "-o", str(program)])
        result.programs.append(program)
    run_compilers(links)

    c_programs = []
    for source in [TEST / "c99.c", *sorted(EXAMPLE.glob("*.c"))]:
        program = directory / source.stem
        link = [f"-L{directory}", "-lopenreg", f"-Wl,-rpath,{directory}"]
        c_programs.append([*C99, *flags, f"-I{INCLUDE}", str(source), "-o", str(program), *link])
        result.programs.append(program)
    run_compilers(c_programs)
    return result


def run_program(name: str, program: Path, arguments: list[str]) -> str:
    """Runs a test; returns "" if it succeeded, else its status and output."""
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("OPENREG_") or k == "OPENREG_TEST_FULL"
    }
    environment |= SANITIZER_ENVIRONMENT
    if name.startswith(LEAKING_TESTS):
        environment["ASAN_OPTIONS"] += ":detect_leaks=0"
    try:
        result = subprocess.run(
            [str(program), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TEST_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"still running after {TEST_TIMEOUT_S:.0f} s"
    if result.returncode == 0:
        return ""
    return f"exit status {result.returncode}\n{result.stdout}{result.stderr}"


def cases_of(program: Path) -> list[tuple[str, list[str]]]:
    """The names and arguments of the tests in a program; a program may be one test."""
    if not program.name.startswith("test_"):
        return [(program.name, [])]
    listing = subprocess.run(
        [str(program), "--list"], capture_output=True, text=True, check=True
    ).stdout
    return [(f"{program.name}.{name}", [name]) for name in listing.split()]


def program_cases(built: Build) -> list[Case]:
    def make_case(program: Path, name: str, arguments: list[str]) -> Case:
        return Case(
            f"{built.configuration.name}/{name}", lambda: run_program(name, program, arguments)
        )

    return [
        make_case(program, name, arguments)
        for program in built.programs
        for name, arguments in cases_of(program)
    ]


def header_names(pattern: str) -> set[str]:
    """All that a regular expression's group finds in the public headers."""
    found: set[str] = set()
    for header in sorted((INCLUDE / "openreg").glob("*.h")):
        found |= set(re.findall(pattern, header.read_text()))
    return found


def declared_functions() -> set[str]:
    return header_names(r"OPENREG_API [\w* ]*?\b(or\w+)\(")


def test_sources() -> str:
    return "\n".join(path.read_text() for path in sorted(TEST.glob("test_*.cpp")))


def check_missing(what: str, missing: set[str]) -> str:
    return f"{what}: {', '.join(sorted(missing))}" if missing else ""


def every_function_is_tested() -> str:
    sources = test_sources()
    missing = {name for name in declared_functions() if f"{name}(" not in sources}
    return check_missing("functions without a test", missing)


def every_function_is_tested_without_memory() -> str:
    source = (TEST / "test_exhaustion.cpp").read_text()
    # It takes the error of another function.
    functions = header_names(r"OPENREG_API orError_t\s+(or\w+)\(") - {"orGetLastError"}
    missing = {name for name in functions if not re.search(rf"\b{name}\b", source)}
    return check_missing("functions without a test of exhausted memory", missing)


def every_error_code_is_produced() -> str:
    codes = header_names(r"X\((or\w+), \d+,")
    checked = set(re.findall(r"CHECK_\w+\([^;]*?\b(or(?:Error\w+|Success))\)", test_sources()))
    return check_missing("error codes that no test produces", codes - checked - {"orSuccess"})


def library_exports_what_headers_declare(library: Path) -> str:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in listing.splitlines()}
    declared = declared_functions()
    missing = check_missing("declared, not exported", declared - exported)
    extra = {name for name in exported - declared if not name.startswith("_")}
    return missing or check_missing("exported, not declared", extra)


def headers_compile_alone_as_c99() -> str:
    for header in sorted((INCLUDE / "openreg").glob("*.h")):
        result = subprocess.run(
            [*C99, f"-I{INCLUDE}", "-fsyntax-only", "-x", "c", "-"],
            input=f"#include <openreg/{header.name}>\nint unused;\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            return f"{header.name}: {result.stderr}"
    return ""


def only_three_files_include_os_headers() -> str:
    system = re.compile(r"#include <(sys/|unistd|pthread|sched|signal|fcntl|time\.h|dlfcn|linux/)")
    for path in sorted([*SOURCE.rglob("*.h"), *SOURCE.rglob("*.cpp")]):
        is_of_os = path.name in ("os.cpp", "os_extras.cpp", "fault_signal.cpp")
        if not is_of_os and system.search(path.read_text()):
            return f"{path.name} includes a header of the operating system"
    return ""


def included_units() -> dict[str, set[str]]:
    """The units, each a header and its source, that each unit includes."""
    included: dict[str, set[str]] = {}
    for path in [*SOURCE.rglob("*.h"), *SOURCE.rglob("*.cpp")]:
        unit = path.relative_to(SOURCE).with_suffix("").as_posix()
        names = re.findall(r'#include "([\w/]+)\.h"', path.read_text())
        included.setdefault(unit, set()).update(name for name in names if name != unit)
    return included


def circles_are_small() -> str:
    included = included_units()
    reached: dict[str, set[str]] = {}
    for unit in included:
        found, ahead = set(), [unit]
        while ahead:
            new = included[ahead.pop()] - found
            found |= new
            ahead += new
        reached[unit] = found
    for unit, units in sorted(reached.items()):
        circle = sorted(other for other in units if unit in reached[other])
        if len(circle) > MAX_CIRCLE:
            return f"expected circles of at most {MAX_CIRCLE} units, got {', '.join(circle)}"
    return ""


def folders_include_only_those_below() -> str:
    included = included_units()
    folders = {unit.split("/")[0] for unit in included}
    if folders != set(FOLDERS):
        return f"expected the folders {sorted(FOLDERS)}, got {sorted(folders)}"
    for unit, names in sorted(included.items()):
        rank = FOLDERS.index(unit.split("/")[0])
        upward = sorted(name for name in names if FOLDERS.index(name.split("/")[0]) > rank)
        if upward:
            return f"{unit} includes {', '.join(upward)}"
    return ""


def contract_cases(built: Build) -> list[Case]:
    cases = [
        Case(f"contract/{check.__name__}", check)
        for check in (
            every_function_is_tested,
            every_function_is_tested_without_memory,
            every_error_code_is_produced,
            headers_compile_alone_as_c99,
            only_three_files_include_os_headers,
            circles_are_small,
            folders_include_only_those_below,
        )
    ]
    if built.configuration.name == "none":

        def check_exports() -> str:
            return library_exports_what_headers_declare(built.library)

        cases.append(Case("contract/library_exports_what_headers_declare", check_exports))
    return cases


def run_case(case: Case) -> str:
    begin = time.monotonic()
    error = case.run()
    verdict = "FAIL" if error else "PASS"
    detail = "\n    " + error.strip().replace("\n", "\n    ") if error else ""
    print(f"{verdict} {case.name} ({time.monotonic() - begin:.2f} s){detail}", flush=True)
    return error


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build_directory", nargs="?", type=Path, help="default: a temporary one")
    parser.add_argument("--sanitizer", choices=[*CONFIGURATIONS, "all"], default="all")
    parser.add_argument("-k", dest="pattern", default="", help="run tests whose name contains it")
    return parser.parse_args()


def run_all(directory: Path, sanitizer: str, pattern: str) -> int:
    names = list(CONFIGURATIONS) if sanitizer == "all" else [sanitizer]
    cases: list[Case] = []
    for name in names:
        try:
            built = build(CONFIGURATIONS[name], directory / name)
        except BuildError as error:
            print(f"FAIL {name}/build\n{error}")
            return 1
        cases += program_cases(built)
        if name == names[0]:
            cases += contract_cases(built)
    selected = [case for case in cases if pattern in case.name]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as executor:
        errors = list(executor.map(run_case, selected))
    failed = sum(1 for error in errors if error)
    print(f"{len(errors) - failed} passed, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    arguments = parse_arguments()
    if arguments.build_directory is not None:
        return run_all(arguments.build_directory, arguments.sanitizer, arguments.pattern)
    with tempfile.TemporaryDirectory() as directory:
        return run_all(Path(directory), arguments.sanitizer, arguments.pattern)


if __name__ == "__main__":
    sys.exit(main())
