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
import run
import shares
from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests, subtest
from parts import PARTS, Share, Test, divide, part_of
from processes import Limits, Runner

_FOLDER = Path(run.__file__).resolve().parent
_ROOT = _FOLDER.parent
_NINJA = Path(sys.executable).parent / "ninja"


def instances(count, group="TestIt::test_it", parameters=lambda _: {}, is_kept=lambda _: False):
    return [
        Test(f"{group}_{number}", group, parameters(number), is_kept(number))
        for number in range(count)
    ]


def chosen(tests, share, slow=()):
    return divide(tests, Share(30, share, slow))


class TestNinja(OpenRegTestCase):
    """The tests build extensions in an environment that is not activated."""

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


class TestDivision(OpenRegTestCase):
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
            "from parts import Share, Test, divide\n"
            "tests = [Test(f'TestIt::test_it_{i}', 'TestIt::test_it') for i in range(100)]\n"
            "print(sorted(divide(tests, Share(30, 0.2))))"
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

    def test_few_are_a_third_of_the_default_part_and_in_it(self):
        tests = instances(100) + instances(2, "TestOther")
        for entry in (None, Share(30, 0.5, ("TestIt::test_it_3",))):
            default, few, rest, _ = (part_of(tests, entry, part) for part in PARTS)
            self.assertLess(few, default)
            self.assertEqual(len(few), round(0.3 * (100 if entry is None else 50)) + 1)
            self.assertEqual(len(default | rest), len(default) + len(rest))
            self.assertEqual(default | rest, {test.name for test in tests})

    def test_part_of_ci_is_a_twentieth_of_the_rest_of_a_file(self):
        tests = instances(100) + [test for i in range(9) for test in instances(2, f"TestOther{i}")]
        entry = Share(30, 0.5, ("TestIt::test_it_3",))
        _, _, rest, of_ci = (part_of(tests, entry, part) for part in PARTS)
        self.assertLess(of_ci, rest)
        self.assertEqual(len(of_ci), round(0.05 * (50 + 9)))
        self.assertLess({*entry.slow}, rest - of_ci)
        self.assertEqual(len(part_of(tests, Share(30, 0.9), "ci")), 1)
        self.assertEqual(part_of(tests, None, "ci"), set())

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
        tests = instances(10) + instances(2, "TestSlow")
        slow = ("TestIt::test_it_3", "TestSlow_0", "TestSlow_1")
        self.assertEqual(chosen(tests, 1, slow), {test.name for test in tests} - {*slow})
        # The place of a slow test is another's.
        first = min(tests[:10], key=lambda test: test.order).name
        self.assertEqual(len(chosen(tests[:10], 0.2, (first,))), 2)

    def test_file_of_slow_tests_has_one_of_them(self):
        tests = instances(3)
        slow = tuple(test.name for test in tests)
        self.assertEqual(len(chosen(tests, 1, slow)), 1)

    def test_slow_test_that_is_none_is_refused(self):
        with self.assertRaisesRegex(
            ValueError, "expected slow tests to be tests, got TestIt::gone"
        ):
            chosen(instances(3), 1, ("TestIt::gone",))

    def test_entries_are_of_files(self):
        self.assertEqual([file for file in run.shares() if not (_FOLDER / file).is_file()], [])

    def test_share_that_divides_nothing_is_refused(self):
        for share in (0, 1):
            with (
                tempfile.TemporaryDirectory() as folder,
                mock.patch("parts.TABLE", Path(folder) / "shares.toml") as table,
            ):
                table.write_text(shares.table({"test_it.py": Share(30, share)}))
                with self.assertRaisesRegex(ValueError, "test_it.py: expected a share above 0 and"):
                    run.shares()


class TestShares(OpenRegTestCase):
    def test_long_files_share_what_the_others_leave(self):
        measured = {f"test_{number}.py": {"test_a": 6.0, "test_b": 4.0} for number in range(30)}
        measured["long.py"] = {f"test_{number}": 4.0 for number in range(100)}
        measured["longer.py"] = {f"test_{number}": 4.0 for number in range(400)}
        entries = shares.computed(measured, {}, file_count=100)
        self.assertEqual({*entries}, {"long.py", "longer.py"})
        long, longer = (entry.seconds * entry.share for entry in entries.values())
        self.assertAlmostEqual(longer / long, 2, delta=0.1)
        self.assertAlmostEqual(
            long + longer, 2 * shares._RUN_S - 100 * shares._START_S - 300, delta=15
        )

    def test_slow_tests_are_named(self):
        measured = {"test_it.py": {"test_a": 3.0, "test_b": 30.0}}
        entries = shares.computed(measured, {}, file_count=1)
        self.assertEqual(entries, {"test_it.py": Share(33, 1, ("test_b",))})

    def test_files_with_a_costly_class_run_whole(self):
        for file in shares._WHOLE:
            self.assertTrue((_FOLDER / file).is_file(), file)
            measured = {file: {"test_a": 100.0, "test_b": 1.0}}
            self.assertEqual(shares.computed(measured, {}, file_count=1), {})

    def test_files_that_were_not_measured_keep_their_entries(self):
        before = {"test_it.py": Share(30, 1, ("TestIt::test_a",)), "other.py": Share(300, 0.5)}
        entries = shares.computed({"other.py": {"test_it": 4.0}}, before, file_count=1)
        self.assertEqual(entries["test_it.py"].slow, ("TestIt::test_a",))
        self.assertNotIn("other.py", entries)

    def test_files_that_leave_nothing_are_refused(self):
        measured = {f"test_{number}.py": {"test_it": 10.0} for number in range(100)}
        measured["long.py"] = {f"test_{number}": 1.0 for number in range(100)}
        with self.assertRaisesRegex(ValueError, "expected files below 12 s to take less"):
            shares.computed(measured, {}, file_count=100)

    def test_table_is_read_as_it_is_written(self):
        entries = {
            "generic/test_a.py": Share(30, 0.5, ("TestIt::test_a[1-x]", "TestIt::test_b")),
            "test_b.py": Share(60, 0.25),
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "shares.toml"
            path.write_text(shares.table(entries))
            with mock.patch("parts.TABLE", path):
                self.assertEqual(run.shares(), entries)

    def test_durations_are_those_of_the_tests_of_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "it.xml").write_text(
                "<testsuites><testsuite>"
                '<testcase classname="test.generic.test_func.TestA" name="test_a" time="1.5"/>'
                '<testcase classname="test.generic.test_func.TestB" name="test_b" time="2"/>'
                '<testcase classname="test.python.test_demo" name="test_c[1-1]" time="4"/>'
                '<testcase classname="elsewhere.TestC" name="test_d" time="8"/>'
                "</testsuite></testsuites>"
            )
            self.assertEqual(
                shares.durations(Path(folder)),
                {
                    "generic/test_func.py": {"TestA::test_a": 1.5, "TestB::test_b": 2},
                    "python/test_demo.py": {"test_c[1-1]": 4},
                },
            )


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

    def test_default_run_and_the_rest_have_each_file(self):
        files = {f"test/{path.relative_to(_FOLDER)}" for path in _FOLDER.rglob("test_*.py")}
        default, rest, of_ci = (self.runs_of(*option) for option in ((), ("--rest",), ("--ci",)))
        self.assertEqual({*default}, files)
        self.assertEqual({*rest}, {f"test/{file}" for file in run.shares()})
        divided = {f"test/{file}" for file, entry in run.shares().items() if entry.share < 1}
        self.assertEqual({*of_ci}, divided)
        for runs, part in ((default, "default"), (rest, "rest"), (of_ci, "ci")):
            for arguments in runs.values():
                self.assertIn(f"--openreg-part={part}", arguments)

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
            self.assertFalse([one for one in arguments if one.startswith("--openreg-part")])

    @parametrize(
        "arguments",
        [
            subtest(("--cuda",), name="cuda"),
            subtest(("--sanitizer",), name="sanitizer"),
            subtest(("test/generic/test_ops_out.py",), name="file"),
        ],
    )
    def test_sample_of_other_runs_is_the_default_part_of_the_same_files(self, arguments):
        for option, part in (("--sample", "default"), ("--few", "few")):
            runs = self.runs_of(*arguments, option)
            self.assertEqual({*runs}, {*self.runs_of(*arguments)})
            for of_file in runs.values():
                self.assertIn(f"--openreg-part={part}", of_file)

    def test_long_files_start_first(self):
        entries = run.shares()
        longest = max(entries, key=lambda file: entries[file].seconds)
        self.assertEqual(next(iter(self.runs_of("--all"))), f"test/{longest}")

    @parametrize("other", ["test/core/test_stream.py", "--cuda", "--full", "--verify"])
    @parametrize("option", ["--ci", "--rest", "--quick"])
    def test_option_that_chooses_stands_alone(self, option, other):
        code, output = result_of(option, other)
        self.assertEqual(code, 2)
        self.assertRegex(output, f"{option}: expected no files|not allowed with argument {option}")

    def test_file_without_tests_in_its_part_is_a_failure(self):
        """test_report.py runs whole by default."""
        outcomes = {}
        for part in ("default", "rest"):
            with tempfile.TemporaryDirectory() as folder:
                arguments = (
                    "test/tools/test_report.py",
                    f"--openreg-part={part}",
                    f"--openreg-part-counts={folder}",
                )
                (outcome,) = Runner(os.environ, 1, Limits(100, 300)).run({"it": arguments})
                outcomes[part] = outcome
                table = run.left_out(run.counts_of_parts(Path(folder)))
                expected = {"default": "0 of 4", "rest": "4 of 4"}[part]
                self.assertRegex(table, f"^left out: {expected} tests")
        self.assertTrue(outcomes["default"].is_success)
        self.assertFalse(outcomes["rest"].is_success)

    def test_what_is_left_out_is_summed_up_by_folders(self):
        counts = [
            {"file": "generic/test_a.py", "tests": 100, "left_out": 90},
            {"file": "generic/test_b.py", "tests": 50, "left_out": 0},
            {"file": "inductor/test_c.py", "tests": 7, "left_out": 5},
            {"file": "test_d.py", "tests": 3, "left_out": 0},
        ]
        lines = run.left_out(counts).splitlines()
        self.assertRegex(lines[0], r"^left out: 95 of 160 tests, .*run\.py --rest")
        self.assertRegex(run.left_out(counts, is_sample=True), "^left out: 95 .*without --sample")
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


for one in (TestDivision, TestRuns, TestQuickRun):
    instantiate_parametrized_tests(one)

if __name__ == "__main__":
    run_tests()
