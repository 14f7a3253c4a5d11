"""The pytest plug-in, and the program that runs others: both for code that uses cuda."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

import pytest
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    make_cuda_driver,
    parametrize,
    run_tests,
    subtest,
)

pytestmark = pytest.mark.sample(0.037)
slow = pytest.mark.slow  # the class has a method `pytest`

ROOT = Path(__file__).resolve().parents[2]

SUITE = """
# docs: suite
import pytest
import torch


def test_device():
    assert torch.zeros(1, device="cuda").is_cuda and torch.cuda.is_emulated


def test_gate(cuda_gate):
    with cuda_gate as gate:
        x = torch.ones(1, device="cuda")
        assert not torch.cuda.current_stream().query()
        gate.open()
        assert x.item() == 1


@pytest.mark.needs_real_cuda
def test_kernel_of_triton():
    raise AssertionError
# docs: end
"""

TOOLS = """
import importlib.util
import subprocess

def test_tools():
    run = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    assert run.stdout.count("UUID") == 2
    assert importlib.util.find_spec("pynvml") is not None
"""

WITHOUT_TORCH = """
import sys

def test_nothing_is_imported():
    assert not {"torch", "torch_openreg"} & {name.partition(".")[0] for name in sys.modules}
"""

GATE_ALONE = """
def test_gate(cuda_gate):
    raise AssertionError
"""


CLOSED_GATE = """
import torch
from torch_openreg import testing

def test_gate(cuda_gate, monkeypatch):
    tell = testing._tell
    monkeypatch.setattr(testing, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(testing, "_tell", lambda text: (tell(text), cuda_gate.open()))
    with cuda_gate:
        torch.cuda.synchronize()
"""

RACES = """
import pytest
import torch

def race():
    x, side = torch.zeros(64, device="openreg"), torch.openreg.Stream()
    with side:
        x.mul(2)
    torch.openreg.synchronize()

def test_race():
    race()

def test_that_is_right():
    assert torch.zeros(1, device="openreg").item() == 0

@pytest.mark.openreg_sanitizer(allow=["race"])
def test_allowed():
    race()

@pytest.mark.openreg_sanitizer(expect="race")
def test_expected():
    race()

@pytest.mark.openreg_sanitizer(expect="race")
def test_expected_in_vain():
    pass
"""

SUMMARY = """
import pytest
import torch

def race():
    x, side = torch.zeros(64, device="openreg"), torch.openreg.Stream()
    with side:
        x.mul(2)
    torch.openreg.synchronize()

@pytest.mark.parametrize("number", range(4))
def test_race(number):
    race()

def test_other_race():
    x, side = torch.zeros(64, device="openreg"), torch.openreg.Stream()
    with side:
        x.add(2)
    torch.openreg.synchronize()

@pytest.mark.openreg_sanitizer(allow=["race"])
def test_allowed():
    race()

def test_right():
    pass
"""

FAILS_ITSELF = """
import pytest
import torch

def test_wrong_result():
    x, side = torch.zeros(64, device="openreg"), torch.openreg.Stream()
    with side:
        x.mul(2)
    raise AssertionError("of itself")

def test_skipped():
    pytest.skip("of itself")
"""

OWN_REASONS = """
import unittest
import pytest
import torch

def race():
    x, side = torch.zeros(64, device="openreg"), torch.openreg.Stream()
    with side:
        x.mul(2)
    torch.openreg.synchronize()

def test_race():
    race()

def test_fails_itself():
    race()
    raise AssertionError("of itself")

def test_skips_itself():
    race()
    pytest.skip("of itself")

class TestCase(unittest.TestCase):
    def test_race(self):
        race()

    def test_fails_itself(self):
        race()
        self.fail("of itself")

    def test_skips_itself(self):
        race()
        self.skipTest("of itself")
"""

FIXTURE = """
import torch

def race():
    x, side = torch.zeros(64, device="openreg"), torch.openreg.Stream()
    with side:
        x.mul(2)

def test_fixture(openreg_sanitizer):
    assert openreg_sanitizer.findings() == []
    race()
    (found,) = openreg_sanitizer.findings()
    assert found.kind == "race"
    openreg_sanitizer.clear()

def test_it_starts_empty(openreg_sanitizer):
    assert openreg_sanitizer.findings() == []
    assert openreg_sanitizer.is_enabled()

def test_it_is_off_again():
    from torch_openreg.extras.sanitizer import sanitizer
    assert not sanitizer.is_enabled() or ASKED
    assert sanitizer.findings() == []
"""

ORDERS = """
import unittest
import pytest
import torch
from torch_openreg.testing import current_schedule

seen = []

@pytest.fixture
def resource():
    seen.append("set up in " + current_schedule())
    yield
    seen.append("torn down in " + current_schedule())

def missing_wait():
    x, side = torch.zeros(64, device="openreg"), torch.openreg.Stream()
    torch.openreg.synchronize()
    with side:
        x += 1
    return (x * 2)[0].item()

def test_missing_wait():
    print("in", current_schedule())
    assert missing_wait() == 2

class TestCase(unittest.TestCase):
    count = 0

    def test_missing_wait(self):
        self.assertEqual(missing_wait(), 0)

    def test_right(self):
        type(self).count += 1
        self.assertEqual(torch.ones(4, device="openreg").sum().item(), 4)

    def test_right_runs_once_for_each(self):
        self.assertEqual(self.count, COUNT)

def test_fixture(resource):
    pass

def test_fixtures_are_set_up_for_each():
    names = ["lazy", "eager", "0", "1", "2"]
    assert seen == [what + name for name in names for what in ("set up in ", "torn down in ")]
    assert current_schedule() in names

def test_failed_work():
    x = torch.zeros(4, device="openreg")
    x.gather(0, torch.tensor([99], device="openreg"))

@pytest.mark.skip(reason="of itself")
def test_skipped():
    pass
"""


# Each reads too early, and the results of an earlier run at the same addresses are the right ones.
STALE = """
import pytest
import torch

@pytest.fixture(scope="module")
def kept():
    return torch.arange(64.0, device="openreg")

MODULES = torch.full((64,), 5.0, device="openreg")

def side_by_side(write, read):
    side = torch.openreg.Stream()
    x = write()
    with side:
        y = read(x)
    torch.openreg.synchronize()
    return y

def test_device():
    y = side_by_side(lambda: torch.ones(64, device="openreg"), lambda x: x * 2)
    assert y[0].item() == 2

def test_zeros():
    y = side_by_side(lambda: torch.zeros(64, device="openreg"), lambda x: x + 2)
    assert y[0].item() == 2

def test_pinned():
    x = torch.full((64,), 3.0, device="openreg")
    assert x.to("cpu", non_blocking=True)[0] == 3

def test_result():
    side = torch.openreg.Stream()
    with side:
        y = torch.full((64,), 4.0, device="openreg") * 2
    assert y.sum().item() == 512

# An operator without a kernel. Its first call waits.
def test_fallback():
    x, side = torch.ones(7, 7, device="openreg"), torch.openreg.Stream()
    torch.openreg.synchronize()
    with side:
        y = torch.trace(x)
    assert (y * 2).item() == 14

@pytest.mark.parametrize("number", range(2))
def test_right(kept, number):
    assert MODULES.sum().item() == 320
    assert kept.sum().item() == 2016
"""

HOST_ONLY = """
import pytest
import torch

def test_host():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert torch.ones(2, device=device).sum() == 2

@pytest.mark.skip(reason="of itself")
def test_skipped():
    pass
"""

WORK = """
import torch

def test_device():
    assert torch.ones(2, device="openreg").sum().item() == 2
"""

LATE_ERRORS = """
import unittest
import pytest
import torch
from torch_openreg.testing import StreamGate

def fail():
    torch.ones(4, device="openreg")[torch.tensor([9], device="openreg")]

def test_fails():
    fail()

def test_innocent():
    assert torch.ones(2, device="openreg").sum().item() == 2

@pytest.fixture
def failing():
    fail()

def test_with_a_fixture_that_fails(failing):
    raise AssertionError

@pytest.fixture
def failing_later():
    yield
    fail()

def test_with_a_fixture_that_fails_later(failing_later):
    pass

@pytest.fixture
def held():
    with StreamGate(torch.openreg.Stream()):
        yield

def test_with_a_fixture_that_holds_a_stream(held):
    fail()

class TestCase(unittest.TestCase):
    def test_fails(self):
        fail()

    def test_raises(self):
        with self.assertRaises(IndexError):
            fail()
            torch.openreg.synchronize()

@pytest.mark.xfail(raises=IndexError, strict=True)
def test_expected():
    fail()

def test_fails_itself():
    fail()
    raise KeyError("of itself")

def test_last():
    fail()
"""


ASSERTS = """
import pytest
import torch

def fail():
    torch.ones(4, device="cuda")[torch.tensor([9], device="cuda")]

def test_first():
    with pytest.raises(RuntimeError, match="CUDA error: device-side assert triggered"):
        fail()
        torch.cuda.synchronize()

def test_innocent():
    assert torch.ones(2, device="cuda").sum().item() == 2

def test_late():
    fail()

@pytest.fixture
def failing():
    with pytest.raises(RuntimeError):
        fail()
        torch.cuda.synchronize()

def test_with_a_fixture(failing):
    pass
"""

_RIGHT = ["test_right[0]", "test_right[1]"]

# Of the other build, if it is not one.
_TORCH_WITH_CUDA = """
import torch
torch.version.cuda = torch.version.cuda or "13.2"
"""


class TestPlugin(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def pytest(self, *arguments, suite=SUITE, settings=None, **files):
        for name, text in {"test_it.py": suite, **files}.items():
            (self.folder / name.replace("__", ".")).write_text(text)
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "OPENREG"))
        } | (settings or {})
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def assert_outcome(self, result, summary, returncode=0):
        self.assertEqual(result.returncode, returncode, msg=lambda _: result.stdout + result.stderr)
        self.assertIn(summary, result.stdout)

    def test_error_of_a_kernel_is_raised_in_the_test_that_launched_it(self):
        result = self.pytest("test_it.py", "-rfE", "--tb=short", suite=LATE_ERRORS)
        self.assert_outcome(result, "4 failed, 4 passed, 1 xfailed, 3 errors", 1)
        for text in (
            "FAILED test_it.py::test_fails - IndexError",
            "ERROR test_it.py::test_with_a_fixture_that_fails - IndexError",
            "ERROR test_it.py::test_with_a_fixture_that_fails_later - IndexError",
            "ERROR test_it.py::test_with_a_fixture_that_holds_a_stream - IndexError",
            "FAILED test_it.py::TestCase::test_fails - IndexError",
            "FAILED test_it.py::test_fails_itself - KeyError",
            "Besides, a kernel failed: ",
            "FAILED test_it.py::test_last - IndexError",
        ):
            self.assertIn(text, result.stdout)
        self.assertNotIn("a kernel has failed", result.stderr)

    @parametrize("arguments", [[], ["-q"], ["-n", "2"], ["-q", "-n", "2"]])
    def test_tests_that_met_a_device_side_assert_are_counted(self, arguments):
        result = self.pytest("test_it.py", "--openreg-cuda", *arguments, suite=ASSERTS)
        self.assert_outcome(result, "1 failed, 3 passed", 1)
        line = "3 tests met a device-side assert: on a GPU each later test of their process fails"
        self.assertIn(f"\n{line}\n", result.stdout)
        self.assertNotIn("device-side assert", result.stderr)

    @parametrize(
        "test,line",
        [
            (
                "test_first",
                "1 test met a device-side assert: on a GPU each later test of its process",
            ),
            ("test_innocent", ""),
        ],
    )
    def test_count_of_device_side_asserts_is_that_of_the_run(self, test, line):
        result = self.pytest("test_it.py", "--openreg-cuda", "-k", test, suite=ASSERTS)
        self.assert_outcome(result, "1 passed")
        self.assertEqual("device-side assert" in result.stdout, bool(line))
        self.assertIn(line, result.stdout)

    def test_sanitizer_fails_tests_with_findings(self):
        result = self.pytest("test_it.py", "--openreg-sanitizer", suite=RACES)
        self.assertIn("2 failed, 3 passed", result.stdout)
        for text in (
            "openreg sanitizer: race: aten::mul",
            "FAILED test_it.py::test_race",
            "to find 'race'",
        ):
            self.assertIn(text, result.stdout)

    def test_sanitizer_is_off_without_its_option_and_finds_the_kinds_named(self):
        self.assertIn("5 passed", self.pytest("test_it.py", suite=RACES).stdout)
        result = self.pytest("test_it.py", "--openreg-sanitizer=lifetime", suite=RACES)
        self.assertIn("2 failed, 3 passed", result.stdout)
        result = self.pytest("test_it.py", "--openreg-sanitizer=haste", suite=RACES)
        self.assertIn("expected kinds of race, lifetime", result.stderr)

    @parametrize("processes", ["0", "2"])
    def test_sanitizer_sums_up_by_pairs_of_lines(self, processes):
        result = self.pytest(
            "test_it.py", "-n", processes, "--openreg-sanitizer", "--tb=no", suite=SUMMARY
        )
        self.assert_outcome(result, "5 failed, 2 passed", 1)
        section = result.stdout.partition(" openreg sanitizer ")[2].splitlines()
        later = SUMMARY.splitlines().index("        x.mul(2)") + 1
        for count, line in ((4, later), (1, SUMMARY.splitlines().index("        x.add(2)") + 1)):
            pattern = f"^ +{count} x race: .*test_it.py:{line} after .*test_it.py:[0-9]+$"
            self.assertTrue([text for text in section if re.search(pattern, text)], result.stdout)
        self.assertRegex(
            result.stdout, r"\n7 tests, \d\d launches checked, 5 findings, 1 that a marker names\n"
        )

    @parametrize("processes", ["0", "2"])
    def test_sanitizer_reports_as_json(self, processes):
        result = self.pytest(
            *("test_it.py", "-n", processes, "--openreg-sanitizer", "--tb=no"),
            "--openreg-sanitizer-report=found.json",
            suite=SUMMARY,
        )
        self.assert_outcome(result, "5 failed, 2 passed", 1)
        report = json.loads((self.folder / "found.json").read_text())
        self.assertEqual(report["tests"], 7)
        self.assertGreater(report["launches"], 7)
        tests = {finding["test"]: finding for finding in report["findings"]}
        self.assertEqual(len(tests), 6)
        self.assertEqual({finding["kind"] for finding in tests.values()}, {"race"})
        marked = [name for name, finding in tests.items() if finding["is_marked"]]
        self.assertEqual(marked, ["test_it.py::test_allowed"])

    def test_report_without_the_sanitizer_is_refused(self):
        result = self.pytest("test_it.py", "--openreg-sanitizer-report=found.json", suite=SUMMARY)
        self.assertEqual(result.returncode, 4)
        self.assertIn("expected --openreg-sanitizer as well", result.stderr)

    def test_report_that_cannot_be_written_is_refused_at_the_start(self):
        result = self.pytest(
            *("test_it.py", "--openreg-sanitizer"),
            "--openreg-sanitizer-report=nowhere/found.json",
            suite=SUMMARY,
        )
        self.assertEqual((result.returncode, result.stdout), (4, ""))
        self.assertRegex(
            result.stderr,
            "^ERROR: --openreg-sanitizer-report: expected a file that can be written, got '.*"
            "nowhere/found.json': No such file or directory\n",
        )

    def test_report_that_can_no_longer_be_written_leaves_the_rest_of_the_output(self):
        (self.folder / "reports").mkdir()
        suite = f"{SUMMARY}\ndef test_removes():\n    import shutil\n    shutil.rmtree('reports')\n"
        result = self.pytest(
            *("test_it.py", "--openreg-sanitizer", "-k", "test_right or test_removes"),
            *("--openreg-sanitizer-report=reports/found.json", "--openreg-allow-unchecked"),
            suite=suite,
        )
        self.assert_outcome(result, "2 passed", 3)
        self.assertIn("--openreg-sanitizer-report: the findings were not written", result.stdout)

    def test_option_of_the_sanitizer_does_not_take_the_folder_behind_it(self):
        (self.folder / "tests").mkdir()
        # Only a conftest.py that is loaded before the command line is read adds options.
        (self.folder / "tests" / "conftest.py").write_text(
            "def pytest_addoption(parser):\n    parser.addoption('--of-tests', action='store_true')"
        )
        (self.folder / "tests" / "test_race.py").write_text(RACES)
        for arguments in (["tests"], ["tests/test_race.py::test_race", "-q"]):
            result = self.pytest("--openreg-sanitizer", *arguments, "--of-tests", suite="")
            self.assertIn("FAILED tests/test_race.py::test_race", result.stdout + result.stderr)
        for option in ("--openreg-sanitizer=rase", "--openreg-sanitizer"):
            result = self.pytest(option, "rase", suite="")
            self.assertEqual(result.returncode, 4)
            self.assertIn("got 'rase'", result.stderr)

    def test_sanitizer_shows_the_findings_of_a_test_that_fails(self):
        result = self.pytest("test_it.py", "--openreg-sanitizer", suite=FAILS_ITSELF)
        self.assert_outcome(result, "1 failed, 1 skipped", 1)
        for text in ("AssertionError: of itself", "openreg sanitizer: race: aten::mul"):
            self.assertIn(text, result.stdout)
        self.assertIn("1 finding, ", result.stdout)

    def test_sanitizer_is_a_fixture(self):
        for arguments in ((), ("--openreg-sanitizer",)):
            suite = FIXTURE.replace("ASKED", str(bool(arguments)))
            self.assert_outcome(self.pytest("test_it.py", *arguments, suite=suite), "3 passed")

    def test_chaos_names_the_schedule_that_fails(self):
        suite = ORDERS.replace("COUNT", "5")
        result = self.pytest("test_it.py", "--openreg-chaos=5", suite=suite)
        self.assert_outcome(result, "3 failed, 4 passed, 1 skipped", 1)
        for text in (
            "test_it.py::test_missing_wait fails under schedule lazy, after 0 others",
            "Again: pytest test_it.py::test_missing_wait --openreg-schedule=lazy",
            "test_it.py::TestCase::test_missing_wait fails under schedule eager, after 1 others",
            "test_it.py::test_failed_work fails under schedule lazy",
            "out of bounds",
        ):
            self.assertIn(text, result.stdout)
        self.assertEqual(result.stdout.count("in lazy\n"), 1)

    def test_chaos_runs_in_several_processes(self):
        result = self.pytest("test_it.py", "--openreg-chaos=3", "-n", "2", suite=ORDERS)
        for text in (
            "test_it.py::test_missing_wait fails under schedule lazy",
            "test_it.py::TestCase::test_missing_wait fails under schedule eager",
        ):
            self.assertIn(text, result.stdout)

    def test_command_to_run_a_test_again_is_complete(self):
        (self.folder / "tests").mkdir()
        (self.folder / "pytest.ini").write_text("[pytest]")
        (self.folder / "tests" / "test_cuda.py").write_text(_ORDER_ON_CUDA)
        result = self.pytest("tests", "--openreg-cuda", "--openreg-chaos=1", suite="")
        command = re.search(r"Again: pytest (.*)", result.stdout)
        self.assertTrue(command, result.stdout)
        again = self.pytest(*shlex.split(command[1]), suite="")
        self.assert_outcome(again, "1 failed", 1)

    def outcomes(self, *arguments):
        """The outcome of each test of STALE, or the schedule under which it fails."""
        result = self.pytest("test_it.py", "-rA", "--tb=no", *arguments, suite=STALE)
        self.assertIn("test_right[1]", result.stdout, msg=lambda _: result.stdout + result.stderr)
        outcomes = dict(re.findall(r"^PASSED test_it.py::(\S+)()", result.stdout, re.MULTILINE))
        failed = re.findall(r"^FAILED test_it.py::(\S+)", result.stdout, re.MULTILINE)
        section = result.stdout.partition(" openreg schedules ")[2]
        named = dict(re.findall(r"^test_it.py::(\S+) fails under schedule (\w+)$", section, re.M))
        self.assertEqual(set(named), set(failed))
        self.assertEqual(set(outcomes) & set(failed), set())  # of a test that runs twice
        return outcomes | named

    @slow
    def test_chaos_finds_what_each_of_its_schedules_finds_alone(self):
        names = ("lazy", "eager", "0", "1", "2", "3")
        alone = {name: self.outcomes(f"--openreg-schedule={name}") for name in names}
        first = {
            test: next((name for name in names if alone[name][test]), "") for test in alone["lazy"]
        }
        self.assertEqual(sorted(test for test, name in first.items() if not name), _RIGHT)
        self.assertEqual(self.outcomes("--openreg-chaos=6"), first)
        # Whatever has run before.
        self.assertEqual(self.outcomes("--openreg-schedule=eager,eager,0"), alone["0"])

    @slow
    def test_schedule_finds_the_same_whatever_tests_run_before(self):
        for name in ("lazy", "0"):
            expected = self.outcomes(f"--openreg-schedule={name}")
            repeated = ["test_it.py", "--keep-duplicates", f"--openreg-schedule={name}"]
            self.assertEqual(self.outcomes(*repeated), expected)

    @parametrize("tool", ["sanitizer", "chaos=2"])
    @parametrize(
        "case",
        [
            subtest(([], {}, "no test launched work on device type openreg"), name="host"),
            subtest(
                (["-n", "2"], {}, "no test launched work on device type openreg"), name="xdist"
            ),
            subtest(
                (["--openreg-cuda", "-k", "skipped"], {}, "all tests were skipped"), name="skipped"
            ),
            subtest(
                ([], {"OPENREG_DEVICE_COUNT": "0"}, "no device is available: OPENREG_DEVICE_COUNT"),
                name="no_device",
            ),
            subtest(
                (
                    [],
                    {"OPENREG_DEVICE_TYPE": "none"},
                    "no device is available: OPENREG_DEVICE_TYPE",
                ),
                name="not_registered",
            ),
        ],
    )
    def test_run_that_checked_nothing_fails(self, tool, case):
        arguments, settings, reason = case
        result = self.pytest(
            *("test_it.py", f"--openreg-{tool}", "--junitxml=results.xml", "-q", *arguments),
            suite=HOST_ONLY,
            settings=settings,
        )
        output = result.stdout + result.stderr
        self.assertEqual(result.returncode, 1, output)
        name = "sanitizer" if tool == "sanitizer" else "schedules"
        self.assertIn(f"FAILED openreg::{name} - Failed: nothing was checked", output)
        section = output.rpartition(f" openreg {name} ")[2]
        self.assertRegex(section, rf"\nnothing was checked: {reason}.*allow-unchecked\.\n")
        is_cuda = "--openreg-cuda" in arguments
        self.assertEqual("Tests of device type cuda need --openreg-cuda" in section, not is_cuda)
        self.assertIn("nothing was checked", (self.folder / "results.xml").read_text())

    @slow
    def test_run_that_checked_something_or_did_not_run_passes(self):
        files = {"test_work.py": WORK}
        for tool, arguments, status in (
            ("sanitizer", ["-n", "2"], 0),
            ("sanitizer", ["-k", "device"], 0),
            ("sanitizer", ["-k", "host", "--openreg-allow-unchecked"], 0),
            ("sanitizer", ["--collect-only"], 0),
            ("sanitizer", ["--setup-plan"], 0),
            ("sanitizer", ["-k", "of_no_test"], 5),
            ("chaos=2", ["-n", "2"], 0),
            ("chaos=2", ["--openreg-cuda", "-k", "host"], 0),
            ("schedule=free", ["-k", "device"], 0),
            ("schedule=lazy", ["-k", "of_no_test"], 5),
        ):
            result = self.pytest(f"--openreg-{tool}", *arguments, suite=HOST_ONLY, **files)
            output = result.stdout + result.stderr
            self.assertEqual(result.returncode, status, output)
            self.assertEqual("nothing was checked" in output, bool(status), output)

    @slow
    def test_sanitizer_is_turned_on_by_the_configuration_file(self):
        for text, finds_races in (
            ("openreg_sanitizer = true", True),
            ("openreg_sanitizer = true\nopenreg_sanitizer_kinds = LIST", False),
            ("openreg_sanitizer_kinds = LIST", None),
        ):
            for name, head, kinds in (
                ("pytest.ini", "[pytest]", "lifetime, host"),
                ("pyproject.toml", "[tool.pytest.ini_options]", "'lifetime,host'"),
                ("pytest.toml", "[pytest]", "'lifetime,host'"),
            ):
                given = f"{head}\n{text.replace('LIST', kinds)}\n"
                result = self.pytest("test_it.py", suite=RACES, **{name: given})
                (self.folder / name).unlink()
                if finds_races is None:
                    self.assert_outcome(result, "5 passed")
                else:
                    self.assert_outcome(result, "2 failed, 3 passed", 1)
                    is_found = "FAILED test_it.py::test_race" in result.stdout
                    self.assertEqual(is_found, finds_races, given)
        given = "[pytest]\nopenreg_sanitizer = true"
        result = self.pytest("-o", "openreg_sanitizer=false", suite=RACES, pytest__ini=given)
        self.assertIn("5 passed", result.stdout)
        given += "\nopenreg_sanitizer_kinds = haste"
        result = self.pytest("test_it.py", suite=RACES, pytest__ini=given)
        self.assertEqual(result.returncode, 4)
        self.assertIn("openreg_sanitizer_kinds: expected kinds of race, lifetime", result.stderr)

    def test_report_of_the_sanitizer_is_the_text_of_the_failure(self):
        later = OWN_REASONS.splitlines().index("        x.mul(2)") + 1
        pair = f"race: test_it.py:{later} after test_it.py:{later - 2}"
        result = self.pytest(
            *("test_it.py", "--openreg-sanitizer", "--show-capture=no", "-rf"),
            "--junitxml=results.xml",
            suite=OWN_REASONS,
        )
        self.assert_outcome(result, "6 failed", 1)
        texts = {}
        results = xml.etree.ElementTree.parse(self.folder / "results.xml")
        for case in results.iter("testcase"):
            name = f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"
            texts[name] = case.find("failure").text
        for name, text in texts.items():
            if "fails_itself" in name:
                self.assertRegex(text, "AssertionError: of itself\n.*Besides, the sanitizer has")
                self.assertRegex(text, rf"\nE +{pair}\n")
            else:
                self.assertTrue(text.startswith(f"{pair}\n"), text)
                self.assertRegex(
                    result.stdout, rf"FAILED test_it.py::\S*{name.rpartition('::')[2]} - .*race: "
                )
            self.assertIn("wait_stream(stream)", text)
        self.assertEqual(result.stdout.count("_ test_race _"), 1)
        self.assertIn("openreg sanitizer: race: aten::mul.Tensor reads", result.stdout)

    def test_plug_in_that_is_installed_may_be_named(self):
        for arguments in (["-p", "pytest_openreg"], ["-p", "pytest_openreg", "-n", "1"]):
            result = self.pytest(*arguments, suite=WITHOUT_TORCH)
            self.assert_outcome(result, "1 passed")

    def test_schedule_that_failed_fails_again(self):
        for order, outcome in (
            ("lazy", "1 failed"),
            ("eager", "1 passed"),
            ("eager,lazy", "1 failed"),
        ):
            result = self.pytest(
                "test_it.py::test_missing_wait", f"--openreg-schedule={order}", suite=ORDERS
            )
            self.assertIn(outcome, result.stdout)

    @parametrize(
        "argument, text",
        [
            subtest(("--openreg-chaos=0", "expected a number of schedules from 1"), name="chaos"),
            subtest(("--openreg-chaos=x", "expected a number of schedules from 1"), name="word"),
            subtest(("--openreg-schedule=hasty", "expected free, lazy, eager"), name="schedule"),
        ],
    )
    def test_bad_schedules_are_refused(self, argument, text):
        result = self.pytest("test_it.py", argument, suite=ORDERS)
        self.assertEqual(result.returncode, 4)
        self.assertIn(text, result.stderr)

    def test_nothing_happens_without_being_asked(self):
        self.assert_outcome(self.pytest(suite=WITHOUT_TORCH), "1 passed")

    @parametrize(
        "arguments, files",
        [
            subtest((["--openreg-cuda"], {}), name="option"),
            subtest(([], {"pytest__ini": "[pytest]\nopenreg_cuda = true"}), name="ini"),
            subtest((["--openreg-cuda"], {"conftest__py": "import torch"}), name="conftest"),
            subtest((["--openreg-cuda", "-n", "2"], {}), name="xdist"),
        ],
    )
    def test_suite_for_cuda_runs(self, arguments, files):
        result = self.pytest(*arguments, **files)
        self.assert_outcome(result, "2 passed, 1 skipped")
        self.assertIn("device type cuda: emulated by torch_openreg", result.stdout)
        self.assertNotIn("Overriding", result.stderr)

    @parametrize("way", ["environment", "conftest"])
    def test_what_needs_real_cuda_is_skipped_however_the_device_type_is_chosen(self, way):
        line = "import os\nos.environ['OPENREG_DEVICE_TYPE'] = 'cuda'\n"
        result = self.pytest(
            "test_it.py",
            settings={"OPENREG_DEVICE_TYPE": "cuda"} if way == "environment" else {},
            conftest__py=line if way == "conftest" else "",
        )
        self.assert_outcome(result, "2 passed, 1 skipped")

    def test_what_needs_real_cuda_runs_where_there_is_no_emulation(self):
        result = self.pytest("test_it.py", "-k", "triton")
        self.assert_outcome(result, "1 failed", 1)

    def test_tests_for_cuda_find_the_tools_of_cuda(self):
        self.assert_outcome(self.pytest("--openreg-cuda", suite=TOOLS), "1 passed")
        self.assertIn("1 failed", self.pytest(suite=TOOLS).stdout)

    @parametrize(
        "argument,known",
        [
            ("--openreg-sanitiser=race", "--openreg-sanitizer"),
            ("--openreg-schedules=lazy", "--openreg-schedule"),
        ],
    )
    def test_misspelled_option_is_refused_with_the_nearest(self, argument, known):
        result = self.pytest(argument)
        self.assertEqual(result.returncode, 4)
        name = argument.partition("=")[0]
        text = f"unrecognized argument: {name}; did you mean {known}?"
        self.assertIn(text, result.stdout + result.stderr)

    def test_option_of_another_plugin_is_left_to_it(self):
        conftest = "def pytest_addoption(parser): parser.addoption('--openreg-x-y-z')"
        suite = "def test_it(pytestconfig): assert pytestconfig.getoption('--openreg-x-y-z') == '1'"
        result = self.pytest("--openreg-x-y-z=1", suite=suite, conftest__py=conftest)
        self.assert_outcome(result, "1 passed")

    def test_plugin_that_imports_torch_first_is_an_error(self):
        result = self.pytest("-p", "early", "--openreg-cuda", early__py="import torch")
        self.assertEqual(result.returncode, 4)
        self.assertIn("expected a process that has not imported torch yet", result.stderr)

    @parametrize("arguments", [[], ["-n", "2"]])
    def test_gpus_that_torch_can_use_are_an_error(self, arguments):
        with tempfile.TemporaryDirectory() as driver:
            settings = make_cuda_driver(driver)
            result = self.pytest(
                "--openreg-cuda", *arguments, settings=settings, conftest__py=_TORCH_WITH_CUDA
            )
        self.assertEqual(result.returncode, 4, msg=lambda _: result.stdout + result.stderr)
        self.assertRegex(
            result.stderr, r"ERROR: --openreg-cuda: .* this machine has 3 .* from this process\n$"
        )

    @parametrize(
        "name,value",
        [
            ("CUDA_VISIBLE_DEVICES", ""),
            ("CUDA_VISIBLE_DEVICES", "-1"),
            ("CUDA_VISIBLE_DEVICES", "5"),
            ("OPENREG_DEVICE_COUNT", "0"),
            ("OPENREG_DEVICE_COUNT", "99"),
            ("OPENREG_DEVICE_MEMORY", "8GB"),
        ],
    )
    def test_no_device_is_an_error(self, name, value):
        result = self.pytest("--openreg-cuda", settings={name: value})
        self.assertEqual(result.returncode, 4, msg=lambda _: result.stdout + result.stderr)
        last = result.stderr.strip().splitlines()[-1]
        self.assertTrue(
            last.startswith(f"ERROR: --openreg-cuda: no device is available: {name} is '{value}'"),
            last,
        )

    def test_clone_in_the_project_is_not_collected(self):
        # Files of a clone besides the built package.
        clone = self.folder / "clone"
        (clone / "test").mkdir(parents=True)
        (clone / "test" / "test_other.py").write_text("import common")
        shutil.copy(ROOT / "conftest.py", clone)
        self.assert_outcome(self.pytest("--openreg-cuda"), "2 passed, 1 skipped")
        for arguments in (["clone"], ["clone/test/test_other.py"]):
            self.assertIn("No module named 'common'", self.pytest(*arguments).stdout)

    def test_conftest_of_the_clone_leaves_its_own_runs_alone(self):
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "--collect-only",
                "-q",
                "test/python/test_pytest_plugin.py",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
        )
        self.assertIn("test_conftest_of_the_clone_leaves_its_own_runs_alone", result.stdout)

    def test_message_of_a_closed_gate_is_shown_while_its_test_runs(self):
        result = self.pytest("test_it.py", "--openreg-cuda", suite=CLOSED_GATE)
        self.assert_outcome(result, "1 passed")
        self.assertIn("the StreamGate closed at", result.stderr)
        self.assertNotIn("the StreamGate closed at", result.stdout)

    def test_gate_is_skipped_without_the_device(self):
        self.assert_outcome(self.pytest(suite=GATE_ALONE), "1 skipped")


_ORDER_ON_CUDA = """
import pytest
import torch

@pytest.mark.parametrize("name", ["it's one"])
def test_missing_wait(name):
    x, side = torch.zeros(64, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x += 1
    assert (x * 2)[0].item() == 2
"""

PROGRAM = """
import sys
import torch
if __name__ == "__main__":
    x = torch.ones(1, device="cuda")
    print(sys.argv[1:], torch.cuda.device_count(), torch.cuda.mem_get_info()[1] >> 20)
"""


class TestLauncher(OpenRegTestCase):
    def run_launcher(self, *arguments, **settings):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "program.py").write_text(PROGRAM)
            environment = {
                k: v for k, v in os.environ.items() if not k.startswith("OPENREG")
            } | settings
            return subprocess.run(
                [sys.executable, "-m", "torch_openreg.cuda", *arguments],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
            )

    @parametrize(
        "arguments",
        [
            subtest(("program.py", "--devices", "7", "-m"), name="script"),
            subtest(("-m", "program", "--devices", "7", "-m"), name="module"),
            subtest(("-c", PROGRAM, "--devices", "7", "-m"), name="code"),
        ],
    )
    def test_program_gets_its_own_arguments(self, arguments):
        result = self.run_launcher("--devices", "3", "--memory", "64MiB", *arguments)
        self.assertEqual(
            result.stdout, "['--devices', '7', '-m'] 3 64\n", msg=lambda _: result.stderr
        )

    @parametrize(
        "arguments, text",
        [
            *(
                subtest((words, "expected a script, -m and a module, or -c and code"), name=name)
                for name, words in (("nothing", ()), ("module", ("-m",)), ("code", ("-c",)))
            ),
            subtest(
                (
                    ("--sanitiser", "program.py", "-x"),
                    "unrecognized arguments: --sanitiser; did you mean --sanitizer?",
                ),
                name="misspelled",
            ),
            subtest((("-x", "program.py"), "unrecognized arguments: -x"), name="unknown"),
            *(
                subtest(
                    (
                        ("--devices", value, "program.py"),
                        f"--devices: expected an integer from 0 to 64, got '{value}'",
                    ),
                    name=f"devices_{value.replace('.', '_')}",
                )
                for value in ("x", "65", "-1", "1.5", "")
            ),
            *(
                subtest(
                    (
                        ("--memory", value, "program.py"),
                        "--memory: expected a size of at least 16MiB, such as 512MiB, 4GiB or a "
                        f"number of bytes, got '{value}'",
                    ),
                    name=f"memory_{value}",
                )
                for value in ("8GB", "much", "1")
            ),
        ],
    )
    def test_bad_command_line_is_refused(self, arguments, text):
        result = self.run_launcher(*arguments)
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stdout, "")
        self.assertEqual(
            result.stderr.splitlines()[-1], f"python -m torch_openreg.cuda: error: {text}"
        )

    @parametrize(
        "name,value",
        [
            ("OPENREG_FALLBACK", "loud"),
            ("OPENREG_DEVICE_COUNT", "0"),
            ("CUDA_VISIBLE_DEVICES", "5"),
        ],
    )
    def test_setting_that_leaves_no_device_is_an_error_before_the_program_runs(self, name, value):
        result = self.run_launcher("program.py", **{name: value})
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertRegex(
            result.stderr,
            "^python -m torch_openreg.cuda: error: no device is available: "
            f"{name} is '{value}'.*\n$",
        )

    def test_report_that_cannot_be_written_is_an_error_before_the_program_runs(self):
        result = self.run_launcher(
            "--sanitizer", "program.py", OPENREG_SANITIZER_REPORT="/nowhere/found.json"
        )
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(
            result.stderr,
            "python -m torch_openreg.cuda: error: OPENREG_SANITIZER_REPORT is "
            "'/nowhere/found.json'; allowed: the name of a file that can be written "
            "(No such file or directory)\n",
        )

    def test_program_has_the_device_without_autoload(self):
        result = self.run_launcher("program.py", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.assertEqual(result.returncode, 0, msg=lambda _: result.stderr)

    def test_sanitizer_is_an_option(self):
        result = self.run_launcher("--sanitizer", "-m", "torch_openreg", "--settings")
        self.assertIn("OPENREG_SANITIZER = 1  (environment)", result.stdout)

    def test_unknown_name_is_told_once(self):
        result = self.run_launcher("program.py", OPENREG_DEVICES="4")
        self.assertEqual(result.stderr.count("OPENREG_DEVICES is no setting"), 1)

    @slow
    def test_help_is_plain_text_and_version_is_told(self):
        result = self.run_launcher("--help")
        self.assertNotIn("``", result.stdout)
        for option in ("--devices N", "--memory SIZE", "--sanitizer", "--version"):
            self.assertIn(option, result.stdout)
        self.assertRegex(
            self.run_launcher("--version").stdout, r"^torch_openreg \d\S+, torch \d\S+\n$"
        )

    def test_gpus_that_torch_can_use_are_refused_in_one_line(self):
        program = f"""{_TORCH_WITH_CUDA}
from torch_openreg import cuda
cuda.main(["program.py"])
"""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("OPENREG")}
        with tempfile.TemporaryDirectory() as driver:
            result = subprocess.run(
                [sys.executable, "-c", program],
                env=variables | make_cuda_driver(driver),
                capture_output=True,
                text=True,
                timeout=240,
            )
        self.assertEqual(result.returncode, 1)
        self.assertRegex(
            result.stderr,
            r"^python -m torch_openreg\.cuda: error: .* this machine has 3 .* this process\n$",
        )


instantiate_parametrized_tests(TestPlugin)
instantiate_parametrized_tests(TestLauncher)

if __name__ == "__main__":
    run_tests()
