"""tools/quickstart.py: the commands that it runs, and the index for torch."""

import io
import re
import subprocess
import sys
import urllib.error
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from source_tree import ROOT
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

sys.path.append(str(ROOT / "tools"))

import quickstart
from openreg_machine import MachineError

INDEX = "https://download.pytorch.org/whl/cpu"
PYTHON = "/usr/bin/python3"


class TestQuickstart(TestCase):
    def setUp(self):
        super().setUp()
        self.commands = []
        self.settings = ""
        self.has_torch = False
        self.failing = None
        # Neither files nor other hosts are touched.
        for target, replacement in (
            ("subprocess.run", self.run_command),
            ("urllib.request.urlopen", self.open_url),
            ("quickstart.check_machine", lambda root: None),
            # The tests may run in the clone's own .venv.
            ("sys.executable", PYTHON),
        ):
            patch = mock.patch(target, replacement)
            patch.start()
            self.addCleanup(patch.stop)
        self.unreachable = None

    def run_command(self, command, **options):
        command = [str(word) for word in command]
        if command[1:] == ["config", "list"]:
            return subprocess.CompletedProcess(command, 0, self.settings)
        if "find_spec" in command[-1]:
            return subprocess.CompletedProcess(command, int(not self.has_torch))
        text = " ".join(command).replace(f"{ROOT}/", "")
        self.commands.append(text)
        return subprocess.CompletedProcess(command, int(self.failing in text.split()))

    def open_url(self, url, timeout):
        if self.unreachable is not None:
            raise self.unreachable
        return io.BytesIO()

    def run_main(self, *arguments, has_environment=True):
        self.printed, self.errors = io.StringIO(), io.StringIO()
        with (
            mock.patch("pathlib.Path.exists", return_value=has_environment),
            redirect_stdout(self.printed),
            redirect_stderr(self.errors),
        ):
            return quickstart.main(arguments)

    def test_first_command_ends_with_the_demo(self):
        self.assertEqual(self.run_main(has_environment=False), 0)
        self.assertEqual(
            self.commands,
            [
                f"{PYTHON} -m venv .venv",
                f".venv/bin/pip install torch==2.13.* numpy --extra-index-url {INDEX}",
                ".venv/bin/pip install -e .",
                ".venv/bin/python -m torch_openreg",
            ],
        )
        for command in self.commands:
            self.assertIn(f"$ {command}", self.printed.getvalue().replace("'", ""))

    def test_second_command_needs_nothing_of_the_first(self):
        self.assertEqual(self.run_main("--test", "--quick", has_environment=False), 0)
        self.assertEqual(self.commands[0], f"{PYTHON} -m venv .venv")
        self.assertEqual(
            self.commands[2:],
            [
                ".venv/bin/pip install -e . -r requirements-test.txt",
                ".venv/bin/python test/run.py --quick",
            ],
        )

    def test_what_is_there_is_not_installed_again(self):
        self.has_torch = True
        self.run_main()
        self.assertEqual(
            self.commands, [".venv/bin/pip install -e .", ".venv/bin/python -m torch_openreg"]
        )

    @parametrize(
        "settings",
        [
            subtest("global.index-url='https://mirror/simple'", name="index"),
            subtest(":env:.extra-index-url='https://mirror/simple'", name="another_index"),
            subtest("global.find-links='/wheels'", name="folder"),
            subtest("install.no-index='1'", name="no_index"),
        ],
    )
    def test_torch_comes_from_where_settings_of_pip_say(self, settings):
        self.settings = settings
        self.run_main()
        self.assertEqual(self.commands[0], ".venv/bin/pip install torch==2.13.* numpy")

    def test_index_that_cannot_be_reached_is_left_out(self):
        self.unreachable = urllib.error.URLError("no such host")
        self.assertEqual(self.run_main(), 0)
        self.assertEqual(self.commands[0], ".venv/bin/pip install torch==2.13.* numpy")
        self.assertRegex(self.printed.getvalue(), f"{INDEX} cannot be reached .*no such host")

    @parametrize("failing", [subtest("install", name="pip"), subtest("venv", name="environment")])
    def test_nothing_runs_after_a_failure(self, failing):
        self.failing = failing
        self.assertEqual(self.run_main(has_environment=False), 1)
        self.assertEqual(len(self.commands), 1 + (failing == "install"))
        self.assertRegex(self.errors.getvalue().splitlines()[-1], "^torch_openreg: .*see above$")

    def test_exit_code_is_that_of_the_program(self):
        self.failing = "torch_openreg"
        self.assertEqual(self.run_main(), 1)

    def test_machine_that_lacks_something_is_told_in_one_line(self):
        with mock.patch("quickstart.check_machine", side_effect=MachineError("expected a disk")):
            self.assertEqual(self.run_main(), 1)
        self.assertEqual(self.errors.getvalue(), "torch_openreg: expected a disk\n")
        self.assertEqual(self.commands, [])

    def test_python_without_the_means_to_make_environments_is_told(self):
        with mock.patch("importlib.util.find_spec", return_value=None):
            self.assertEqual(self.run_main(has_environment=False), 1)
        self.assertRegex(self.errors.getvalue(), r"ensurepip.*: apt install python3\.\d+-venv\n$")
        self.assertEqual(self.commands, [])

    def test_unknown_argument_runs_nothing(self):
        self.assertEqual(self.run_main("--tests"), 2)
        self.assertEqual(self.commands, [])

    def test_readme_begins_with_the_two_commands(self):
        blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
        self.assertEqual(
            blocks[:2], ["python3 tools/quickstart.py\n", "python3 tools/quickstart.py --test\n"]
        )


instantiate_parametrized_tests(TestQuickstart)

if __name__ == "__main__":
    run_tests()
