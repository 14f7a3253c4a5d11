"""The plug-in for pytest, and the program that runs others: both for code that says cuda."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests, subtest

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

WITHOUT_TORCH = """
import sys

def test_nothing_is_imported():
    assert not {"torch", "torch_openreg"} & {name.partition(".")[0] for name in sys.modules}
"""

GATE_ALONE = """
def test_gate(cuda_gate):
    raise AssertionError
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


class TestPlugin(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def pytest(self, *arguments, suite=SUITE, **files):
        for name, text in {"test_it.py": suite, **files}.items():
            (self.folder / name.replace("__", ".")).write_text(text)
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "OPENREG"))
        }
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

    def test_plugin_that_imports_torch_first_is_an_error(self):
        result = self.pytest("-p", "early", "--openreg-cuda", early__py="import torch")
        self.assertEqual(result.returncode, 4)
        self.assertIn("expected a process that has not imported torch yet", result.stderr)

    def test_gate_is_skipped_without_the_device(self):
        self.assert_outcome(self.pytest(suite=GATE_ALONE), "1 skipped")


PROGRAM = """
import sys
import torch
if __name__ == "__main__":
    x = torch.ones(1, device="cuda")
    print(sys.argv[1:], torch.cuda.device_count(), torch.cuda.mem_get_info()[1] >> 20)
"""


class TestLauncher(OpenRegTestCase):
    def run_launcher(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "program.py").write_text(PROGRAM)
            environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENREG")}
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
            subtest(((), "expected a script, or -m and a module"), name="nothing"),
            subtest((("--devices", "x", "program.py"), "invalid int value: 'x'"), name="number"),
        ],
    )
    def test_bad_command_line_is_refused(self, arguments, text):
        result = self.run_launcher(*arguments)
        self.assertEqual(result.returncode, 2)
        self.assertIn(text, result.stderr)

    def test_bad_size_is_refused_in_the_settings_words(self):
        result = self.run_launcher("--memory", "much", "program.py")
        self.assertIn("OPENREG_DEVICE_MEMORY is 'much'", result.stderr)


instantiate_parametrized_tests(TestPlugin)
instantiate_parametrized_tests(TestLauncher)

if __name__ == "__main__":
    run_tests()
