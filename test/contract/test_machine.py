"""Errors of a build on an unsuitable machine: one line, before it starts."""

import ast
import collections
import errno
import os
import subprocess
import sys
import sysconfig
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from source_tree import ROOT, compiler
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

BACKEND = ROOT / "tools" / "backend"
sys.path.insert(0, str(BACKEND))

import openreg_machine as machine  # noqa: E402

INCLUDE = Path(sysconfig.get_path("include"))
MIB = 1 << 20


class TestMachine(TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def fake_compiler(self, script):
        """Makes a program that takes the place of the compiler; returns its command."""
        program = self.folder / "c++"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return [str(program)]

    def assert_refused(self, reason, check, *arguments):
        with self.assertRaisesRegex(machine.MachineError, reason) as context:
            check(*arguments)
        self.assertNotIn("\n", str(context.exception))

    def test_old_python_is_refused(self):
        self.assert_refused(
            r"expected Python 3\.11 or newer, got 3\.10\.13\. .*python3\.11 -m venv",
            machine.check_python,
            (3, 10, 13),
        )
        machine.check_python()

    @parametrize("name", ["openreg_build.py", "openreg_machine.py"])
    def test_old_python_can_read_the_file_that_refuses_it(self, name):
        ast.parse((BACKEND / name).read_text(), feature_version=(3, 9))

    def test_missing_compiler_is_told(self):
        self.assert_refused(
            r"expected a C\+\+ compiler, g\+\+ 11 or newer, but '/missing/c\+\+' cannot be started"
            r" \(No such file or directory\)\. Install one: apt install g\+\+",
            machine.check_compiler,
            ["/missing/c++"],
        )

    def test_old_compiler_is_told(self):
        self.assert_refused(
            r"expected g\+\+ 11 or newer, but '.*/c\+\+' is g\+\+ 9\. .*CXX=g\+\+-12",
            machine.check_compiler,
            self.fake_compiler("echo 9 __clang_major__"),
        )

    def test_clang_is_not_taken_for_the_compiler_that_it_pretends_to_be(self):
        machine.check_compiler(self.fake_compiler("echo 4 19"))

    @parametrize(
        "script, reason",
        [
            subtest(("echo 'fatal error: no' >&2; exit 1", "fails: fatal error: no"), name="error"),
            subtest(("echo hello", "fails: it does not say what it is"), name="other_program"),
        ],
    )
    def test_compiler_that_fails_is_told(self, script, reason):
        self.assert_refused(reason, machine.check_compiler, self.fake_compiler(script))

    def test_missing_headers_of_python_are_told(self):
        self.assert_refused(
            rf"expected the headers of Python, but there is no {self.folder}/Python\.h\. "
            rf"Install them: apt install python3\.{sys.version_info[1]}-dev",
            machine.check_headers,
            ["c++"],
            self.folder,
        )

    def test_missing_headers_of_the_language_are_told(self):
        self.assert_refused(
            "expected .* headers of C and C.., but .* fails: x.cpp:1: fatal error: version: No",
            machine.check_headers,
            self.fake_compiler("echo 'In file\nx.cpp:1: fatal error: version: No' >&2; exit 1"),
            INCLUDE,
        )

    @unittest.skipIf(compiler() is None, "needs a C++ compiler")
    def test_compiler_of_the_tests_is_accepted(self):
        machine.check_compiler([compiler()])
        machine.check_headers([compiler()], INCLUDE)

    @parametrize(
        "code", [subtest(errno.EACCES, name="permission"), subtest(errno.EROFS, name="read_only")]
    )
    def test_tree_that_is_not_writable_is_told(self, code):
        error = OSError(code, os.strerror(code))
        with mock.patch("tempfile.TemporaryFile", side_effect=error):
            self.assert_refused(
                rf"{self.folder} is not writable \({os.strerror(code)}\)\. .*cp -r {self.folder} ",
                machine.check_tree,
                self.folder,
            )
        machine.check_tree(self.folder)

    def usage(self, free_mib):
        usage = collections.namedtuple("usage", "free")
        return mock.patch("shutil.disk_usage", return_value=usage(free_mib * MIB))

    def test_disk_that_is_too_small_is_told(self):
        with self.usage(500):
            self.assert_refused(
                rf"expected 600 MiB of free disk space .* in {self.folder}, got 500 MiB",
                machine.check_disk,
                self.folder,
            )

    def test_tree_that_is_built_needs_less_of_the_disk(self):
        (self.folder / "build" / "precompiled").mkdir(parents=True)
        with self.usage(500):
            machine.check_disk(self.folder)

    def test_build_that_failed_on_a_full_disk_says_so(self):
        with self.usage(3):
            self.assertRegex(machine.full_disk(self.folder), "disk of .* is full .3 MiB are free")
        with self.usage(1000):
            self.assertIsNone(machine.full_disk(self.folder))

    @parametrize("mib, jobs", [(100, 1), (1400, 1), (4200, 3), (1 << 20, None)])
    def test_compilers_fit_into_the_memory(self, mib, jobs):
        with (
            mock.patch("os.sched_getaffinity", return_value=range(8)),
            mock.patch.object(machine, "_available_memory", return_value=mib * MIB),
        ):
            self.assertEqual(machine.affordable_jobs(), jobs)


PROGRAMS = {
    # What pip and others run, before they download anything.
    "backend": "import openreg_build; openreg_build.get_requires_for_build_editable()",
    # The start of a build without isolation.
    "setup": "import sys; sys.argv = ['setup.py', 'build_ext']; exec(open('setup.py').read(), "
    "{'__file__': 'setup.py'})",
}


class TestRefusal(TestCase):
    @parametrize("name", list(PROGRAMS))
    def test_refusal_is_one_line(self, name):
        result = subprocess.run(
            [sys.executable, "-c", PROGRAMS[name]],
            cwd=ROOT,
            env=os.environ | {"CXX": "/missing/c++", "PYTHONPATH": str(BACKEND)},
            capture_output=True,
            text=True,
        )
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertRegex(result.stderr, r"^torch_openreg: expected a C\+\+ compiler")


instantiate_parametrized_tests(TestMachine)
instantiate_parametrized_tests(TestRefusal)

if __name__ == "__main__":
    run_tests()
