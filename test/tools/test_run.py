"""The program that runs the tests: the selected tests, and its first and last output."""

import contextlib
import importlib.metadata
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import common  # noqa: F401  (adds the folder of the next modules)
import pytest
import run
from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests, subtest
from processes import Limits, Runner
from sample import Test, chosen, share_of

pytestmark = pytest.mark.sample(0.15)

_FOLDER = Path(run.__file__).resolve().parent
_ROOT = _FOLDER.parent
_NINJA = Path(sys.executable).parent / "ninja"


def no(number):
    return False


def instances(count, group="TestIt::test_it", parameters=lambda _: {}, is_kept=no, is_slow=no):
    return [
        Test(f"{group}_{number}", group, parameters(number), is_kept(number), is_slow(number))
        for number in range(count)
    ]


class TestNinja(OpenRegTestCase):
    """The tests build extensions in an environment that is not activated."""

    @pytest.mark.slow
    @unittest.skipUnless(_NINJA.exists(), "ninja is not installed beside Python")
    def test_ninja_beside_python_is_found_without_one_of_the_system(self):
        with tempfile.TemporaryDirectory() as empty:
            found = subprocess.run(
                [sys.executable, "-c", "import common, shutil; print(shutil.which('ninja'))"],
                env=os.environ | {"PATH": empty, "PYTHONPATH": str(_FOLDER)},
                capture_output=True,
                text=True,
                check=True,
            )
        self.assertEqual(found.stdout.strip(), str(_NINJA))


class TestSample(OpenRegTestCase):
    @parametrize("share", [0.01, 0.1, 0.5, 0.99])
    def test_share_of_each_group_is_chosen_and_one_test_at_least(self, share):
        counts = {"TestIt::test_many": 200, "TestIt::test_few": 3, "TestOther": 1}
        tests = [test for group, count in counts.items() for test in instances(count, group)]
        names = chosen(tests, share)
        for group, count in counts.items():
            of_group = [name for name in names if name.startswith(f"{group}_")]
            self.assertEqual(len(of_group), max(1, round(share * count)))

    def test_choice_depends_on_names_alone(self):
        tests = instances(100)
        self.assertEqual(chosen(tests, 0.2), chosen(tests[::-1], 0.2))
        # A test that is added displaces one at most.
        self.assertLessEqual(len(chosen(tests, 0.2) - chosen(instances(101), 0.2)), 1)
        program = (
            "from sample import Test, chosen\n"
            "tests = [Test(f'TestIt::test_it_{i}', 'TestIt::test_it') for i in range(100)]\n"
            "print(sorted(chosen(tests, 0.2)))"
        )
        other = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONPATH": str(_FOLDER), "PYTHONHASHSEED": "7"},
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(other.stdout.strip(), str(sorted(chosen(tests, 0.2))))

    def test_choice_is_spread(self):
        numbers = {int(name.rpartition("_")[2]) for name in chosen(instances(1000), 0.1)}
        for first in range(0, 1000, 250):
            self.assertGreater(len(numbers & {*range(first, first + 250)}), 10)

    def test_larger_share_has_all_of_a_smaller_one(self):
        tests = instances(100)
        self.assertLess(chosen(tests, 0.1), chosen(tests, 0.3))

    def test_each_value_of_a_parameter_that_has_few_is_chosen(self):
        tests = instances(100, parameters=lambda i: {"mode": str(i % 7), "operator": str(i)})
        names = chosen(tests, 0.02)
        modes = {test.parameters["mode"] for test in tests if test.name in names}
        self.assertEqual(modes, {str(number) for number in range(7)})
        self.assertLess(len(names), 10)

    def test_kept_tests_are_chosen(self):
        tests = instances(100, is_kept=lambda number: number in (3, 50))
        self.assertLessEqual({"TestIt::test_it_3", "TestIt::test_it_50"}, chosen(tests, 0.02))

    def test_slow_tests_are_not_chosen(self):
        tests = instances(10, is_slow=lambda number: number == 3)
        tests += instances(2, "TestSlow", is_slow=lambda _: True)
        fast = {test.name for test in tests if not test.is_slow}
        self.assertEqual(chosen(tests, 1), fast)
        # The place of a slow test is another's.
        first = min(instances(10), key=lambda test: test.order).name
        tests = instances(10, is_slow=lambda number: first.endswith(f"_{number}"))
        self.assertEqual(len(chosen(tests, 0.2)), 2)

    def test_file_of_slow_tests_has_one_of_them(self):
        self.assertEqual(len(chosen(instances(3, is_slow=lambda _: True), 1)), 1)

    def test_share_is_that_of_the_marker_of_the_file(self):
        self.assertEqual(share_of(_FOLDER / "generic" / "test_ops_out.py"), 0.053)
        self.assertEqual(share_of(_FOLDER / "core" / "test_stream.py"), 1)

    def test_markers_of_files_divide_them(self):
        marked = [file for file in _FOLDER.rglob("test_*.py") if "mark.sample(" in file.read_text()]
        self.assertGreater(len(marked), 50)
        shares = {file: share_of(file) for file in marked if file.name != Path(__file__).name}
        self.assertEqual({file for file, share in shares.items() if not 0 < share < 1}, set())


MARKED = """
import unittest

import pytest

pytestmark = pytest.mark.sample(0.5)


class TestIt(unittest.TestCase):
    @pytest.mark.slow
    def test_slow(self): pass

    def test_a(self): pass
    def test_b(self): pass
    def test_c(self): pass
    def test_d(self): pass


@pytest.mark.slow("large]", "huge]")
@pytest.mark.parametrize("size", ["small", "large", "huge"])
def test_it(size): pass
"""


class TestMarkers(OpenRegTestCase):
    def ran(self, text, *options):
        with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
            file = Path(folder) / "test_marked.py"
            file.write_text(text)
            return subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "--collect-only", file, *options],
                cwd=_ROOT,
                capture_output=True,
                text=True,
            )

    def names(self, *options):
        return set(re.findall(r"::(test_\S+)", self.ran(MARKED, *options).stdout))

    def test_sample_has_the_share_and_no_slow_test(self):
        names = self.names("--openreg-sample=1")
        self.assertEqual({name for name in names if "[" in name}, {"test_it[small]"})
        self.assertEqual(len(names), 3)  # two of the class
        self.assertNotIn("test_slow", names)

    def test_scale_multiplies_the_share(self):
        self.assertEqual(len(self.names("--openreg-sample=2")), 5)
        self.assertEqual(len(self.names("--openreg-sample=0.5")), 2)

    def test_all_tests_run_without_a_sample(self):
        self.assertEqual(len(self.names()), 8)

    def test_instance_that_there_is_not_is_an_error(self):
        result = self.ran(MARKED.replace("huge]", "vast]", 1), "--openreg-sample=1")
        self.assertIn("expected ends of names of tests, got test_it..vast]", result.stderr)


def result_of(*arguments):
    """The exit code of the program, and its output on both streams."""
    output = io.StringIO()
    with (
        mock.patch("sys.argv", ["run.py", *arguments]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        try:
            code = run.main()
        except SystemExit as end:
            code = end.code
    return code, output.getvalue()


class TestRuns(OpenRegTestCase):
    def runs_of(self, *arguments):
        """The processes of the program, by name, with the arguments of pytest."""
        with mock.patch("run.Runner.run", return_value=[]) as start:
            result_of(*arguments)
        return start.call_args.args[0]

    def test_file_that_does_not_exist_is_named(self):
        code, output = result_of("test/core/test_guard.py", "test/core/test_gaurd.py")
        self.assertEqual(code, 2)
        self.assertIn(
            "error: expected files of tests, but test/core/test_gaurd.py does not exist", output
        )

    def test_default_run_has_a_sample_of_each_file(self):
        files = {f"test/{path.relative_to(_FOLDER)}" for path in _FOLDER.rglob("test_*.py")}
        default = self.runs_of()
        self.assertEqual({*default}, files)
        for arguments in default.values():
            self.assertIn("--openreg-sample=1", arguments)

    @parametrize(
        "arguments",
        [
            subtest(("--all",), name="all"),
            subtest(("--full",), name="full"),
            subtest(("--verify",), name="verify"),
            subtest(("--sanitizer",), name="sanitizer"),
            subtest(("--cuda",), name="cuda"),
            subtest(("test/generic/test_ops_out.py",), name="file"),
            subtest(("--", "-k", "add"), name="arguments_of_pytest"),
        ],
    )
    def test_other_runs_have_whole_files(self, arguments):
        runs = self.runs_of(*arguments)
        self.assertGreater(len(runs), 0)
        for arguments in runs.values():
            self.assertFalse([one for one in arguments if one.startswith("--openreg-sample")])

    @parametrize(
        "arguments",
        [
            subtest(("--cuda",), name="cuda"),
            subtest(("--sanitizer",), name="sanitizer"),
            subtest(("test/generic/test_ops_out.py",), name="file"),
        ],
    )
    def test_sample_of_other_runs_is_of_the_same_files(self, arguments):
        for scale in ("1", "0.3"):
            runs = self.runs_of(*arguments, "--sample", scale)
            self.assertEqual({*runs}, {*self.runs_of(*arguments)})
            for of_file in runs.values():
                self.assertIn(f"--openreg-sample={scale}", of_file)

    def test_long_files_start_first(self):
        first = next(iter(self.runs_of("--all")))
        shares = [share_of(_FOLDER / file) for file in _FOLDER.rglob("test_*.py")]
        self.assertEqual(share_of(_ROOT / first), min(shares))

    @parametrize("other", ["test/core/test_stream.py", "--cuda", "--full", "--verify"])
    def test_quick_stands_alone(self, other):
        code, output = result_of("--quick", other)
        self.assertEqual(code, 2)
        self.assertRegex(output, "--quick: expected no files|not allowed with argument --quick")

    def test_scale_is_above_zero(self):
        code, output = result_of("--sample", "0")
        self.assertEqual(code, 2)
        self.assertIn("--sample: expected a number above 0, got 0", output)

    def test_counts_of_a_run_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = (
                "test/tools/test_report.py",
                "--openreg-sample=0.01",
                f"--openreg-sample-counts={folder}",
            )
            (outcome,) = Runner(os.environ, 1, Limits(100, 300)).run({"it": arguments})
            table = run.left_out(run.counts_of_samples(Path(folder)))
        self.assertTrue(outcome.is_success)
        self.assertEqual(outcome.counts["passed"], 1)
        self.assertRegex(table, "^left out: 3 of 4 tests")

    def test_what_is_left_out_is_summed_up_by_folders(self):
        counts = [
            {"file": "generic/test_a.py", "tests": 100, "left_out": 90},
            {"file": "generic/test_b.py", "tests": 50, "left_out": 0},
            {"file": "inductor/test_c.py", "tests": 7, "left_out": 5},
            {"file": "test_d.py", "tests": 3, "left_out": 0},
        ]
        lines = run.left_out(counts).splitlines()
        self.assertRegex(lines[0], r"^left out: 95 of 160 tests, .*run\.py --all")
        self.assertEqual(
            lines[1:],
            [
                "  test/generic: 90 of 150 tests, in 1 of 2 files",
                "  test/inductor: 5 of 7 tests, in 1 of 1 files",
            ],
        )


class TestQuickRun(OpenRegTestCase):
    def quick(self, **texts):
        """Runs files of tests instead of those of --quick."""
        with tempfile.TemporaryDirectory() as folder:
            runs = {}
            for name, text in texts.items():
                path = Path(folder) / f"test_{name}.py"
                path.write_text(text)
                runs[name] = (str(path), "-p", "no:cacheprovider")
            with mock.patch("run._QUICK", runs):
                code, output = result_of("--quick")
        return code, output.strip().splitlines()[-1]

    def test_last_line_says_that_it_works(self):
        code, line = self.quick(streams="def test_it(): pass", memory="def test_it(): pass")
        self.assertEqual(code, 0)
        self.assertRegex(
            line, r"^OK: torch_openreg works here: \w+, \w+ \(2 tests passed, \d+ s\)$"
        )

    @pytest.mark.slow("import_fails")
    @parametrize(
        "text",
        [
            subtest("def test_it(): assert False", name="test_fails"),
            subtest("import it_is_not_there", name="import_fails"),
            subtest("", name="no_tests"),
        ],
    )
    def test_last_line_names_what_does_not(self, text):
        code, line = self.quick(streams="def test_it(): pass", memory=text)
        self.assertEqual(code, 1)
        self.assertRegex(
            line, r"^FAILED: torch_openreg does not work here: memory \(1 tests passed, \d+ s\)$"
        )

    def test_parts_of_the_run_are_there(self):
        for arguments in run._QUICK.values():
            for argument in arguments:
                if argument.startswith("test/"):
                    self.assertTrue((_ROOT / argument.partition("::")[0]).is_file(), argument)
        text = " ".join(argument for arguments in run._QUICK.values() for argument in arguments)
        for word in ("streams", "memory", "autograd", "device_generic", "autoload", "plugin"):
            self.assertIn(word, text)


class TestRequirements(OpenRegTestCase):
    def test_missing_one_is_named_with_the_command_before_anything_runs(self):
        version = importlib.metadata.version

        def without_xdist(name):
            if name == "pytest-xdist":
                raise importlib.metadata.PackageNotFoundError(name)
            return version(name)

        with (
            mock.patch("importlib.metadata.version", without_xdist),
            mock.patch("subprocess.Popen", side_effect=AssertionError("started")),
        ):
            for arguments in ((), ("--quick",), ("test/core/test_stream.py",)):
                code, output = result_of(*arguments)
                self.assertEqual(code, 2)
                self.assertRegex(
                    output,
                    r"^test/run\.py: expected what the tests need, but pytest-xdist is missing; "
                    rf"run: {re.escape(sys.executable)} -m pip install -r \S*requirements-test.txt"
                    r"\n$",
                )

    def test_python_without_the_package_is_told_in_one_line(self):
        # Without the folder of installed packages.
        result = subprocess.run(
            [sys.executable, "-S", str(_FOLDER / "run.py")],
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            cwd=_FOLDER,
            capture_output=True,
            text=True,
        )
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertRegex(result.stderr, r"^test/run\.py: expected torch_openreg to be .*\n$")

    def test_help_needs_nothing_and_keeps_its_paragraphs(self):
        result = subprocess.run(
            [sys.executable, "-S", str(_FOLDER / "run.py"), "--help"],
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"COLUMNS": "80"},
            capture_output=True,
            text=True,
        )
        self.assertEqual(result.returncode, 0)
        paragraphs = result.stdout.split("\n\n")
        for begin in ("Runs the tests:", "By default:", "With --quick,", "With --cuda,"):
            self.assertEqual(len([one for one in paragraphs if one.startswith(begin)]), 1)
        self.assertLess(max(map(len, result.stdout.splitlines())), 81)


for one in (TestSample, TestRuns, TestQuickRun):
    instantiate_parametrized_tests(one)

if __name__ == "__main__":
    run_tests()
