"""Dry runs by their options: of the command, and of the plug-in for pytest."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests

pytestmark = pytest.mark.sample(0.5)

COUNT = "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_name())"


def run(*arguments, folder=None):
    environment = {name: one for name, one in os.environ.items() if not name.startswith("OPENREG_")}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment,
        cwd=folder or os.path.dirname(os.path.realpath(__file__)),
        capture_output=True,
        text=True,
        timeout=300,
    )


class TestCommand(OpenRegTestCase):
    def test_gpu_and_number(self):
        ended = run("torch_openreg.cuda", "--dry-run", "--gpu", "H100:8", "-c", COUNT)
        self.assertEqual(ended.stdout, "8 NVIDIA H100 80GB HBM3\n")
        self.assertIn("verdict   nothing ran", ended.stderr)

    def test_report_of_a_relative_path(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("--gpu", "t4", "--report", "a.json", "-c", "import torch")
            ended = run("torch_openreg.cuda", "--dry-run", *arguments, folder=folder)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn('"verdict": "nothing ran"', (Path(folder) / "a.json").read_text())

    @parametrize(
        "arguments, text",
        [
            (("--dry-run", "--gpu", "tpu"), "--gpu: expected none, v100-16gb, "),
            (("--gpu", "h100"), "--gpu: expected --dry-run with it"),
            (("--beyond",), "--beyond: expected --dry-run with it"),
            (("--dry-run", "--timing", "never"), "--timing: expected early or late, got 'never'"),
            (
                ("--dry-run", "--data-dependent", "most"),
                "--data-dependent: expected worst, none or error, got 'most'",
            ),
            (("--data-dependent", "none"), "--data-dependent: expected --dry-run with it"),
            (
                ("--dry-run", "--made-up-value", "2"),
                "--made-up-value: expected 0 or 1, got '2'",
            ),
            (("--made-up-value", "1"), "--made-up-value: expected --dry-run with it"),
            (("--dry-run", "--gpu", "h100:many"), "--devices: expected "),
        ],
        name_fn=lambda arguments, text: "_".join(arguments).replace("-", "").replace(":", "_"),
    )
    def test_wrong_options_are_explained(self, arguments, text):
        ended = run("torch_openreg.cuda", *arguments, "-c", COUNT)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn(text, ended.stderr)


# Prints the number of elements found in a large tensor, and values of skipped work.
GUESSES = """
import torch
x = torch.empty(1000, 1000, device="cuda")
print(len(x.nonzero()))
print(x.sum().item(), x.half().mean().item(), (x > 0).any().item(), x.argmax().item())
print(x.sum(0)[::2][:3].tolist(), torch.view_as_complex(x.view(-1, 2)).sum().item())
"""


class TestGuesses(OpenRegTestCase):
    @parametrize(
        "arguments, expected",
        [
            ((), ["1000000", "0.0 0.0 False 0", "[0.0, 0.0, 0.0] 0j"]),
            (("--data-dependent", "worst"), ["1000000", "0.0 0.0 False 0", "[0.0, 0.0, 0.0] 0j"]),
            (("--data-dependent", "none"), ["0", "0.0 0.0 False 0", "[0.0, 0.0, 0.0] 0j"]),
            (("--made-up-value", "1"), ["1000000", "1.0 1.0 True 1", "[1.0, 1.0, 1.0] (1+0j)"]),
        ],
        name_fn=lambda arguments, expected: "_".join(arguments).replace("-", "") or "neither",
    )
    def test_option_of_the_command(self, arguments, expected):
        ended = run("torch_openreg.cuda", "--dry-run", *arguments, "-c", GUESSES)
        self.assertEqual(ended.stdout.splitlines(), expected, ended.stderr)

    def test_error_names_the_operator(self):
        arguments = ("--dry-run", "--data-dependent", "error")
        ended = run("torch_openreg.cuda", *arguments, "-c", GUESSES)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("aten::nonzero", ended.stderr)

    def test_options_of_the_plug_in(self):
        tests = """
            import torch

            def test_guesses():
                x = torch.empty(1000, 1000, device="cuda")
                assert len(x.nonzero()) == 0
                assert x.sum().item() == 1
        """
        arguments = ("--openreg-data-dependent=none", "--openreg-made-up-value=1")
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "test_guesses.py").write_text(textwrap.dedent(tests))
            begin = ("pytest", "-p", "no:cacheprovider", "--openreg-cuda")
            ended = run(*begin, "--openreg-dry-run=h100", *arguments, folder=folder)
            self.assertEqual(ended.returncode, 0, ended.stdout)
            for argument in arguments:
                ended = run(*begin, argument, folder=folder)
                self.assertEqual(ended.returncode, 4, ended.stdout)
                name = argument.split("=")[0]
                self.assertIn(f"{name}: expected --openreg-dry-run as well", ended.stderr)
            ended = run(*begin, "--openreg-data-dependent=all", folder=folder)
            self.assertIn("invalid choice: 'all'", ended.stderr)


class TestPlugin(OpenRegTestCase):
    TESTS = """
        import pytest
        import torch

        @pytest.mark.gpu_memory(at_most="2GiB")
        def test_small():
            torch.empty(2**28, device="cuda").fill_(1)

        @pytest.mark.gpu_memory(at_most="2GiB")
        def test_large():
            torch.empty(2**30, device="cuda").fill_(1)

        def test_too_large():
            torch.empty(2**40, dtype=torch.uint8, device="cuda")
    """

    def run_pytest(self, tests, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "test_budgets.py").write_text(textwrap.dedent(tests))
            return run("pytest", "-p", "no:cacheprovider", *arguments, folder=folder)

    def test_budgets_and_peaks(self):
        ended = self.run_pytest(self.TESTS, "--openreg-cuda", "--openreg-dry-run=H100")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("1 passed", ended.stdout)
        self.assertIn("2 failed", ended.stdout)
        self.assertIn(
            "expected at most 2.00 GiB of GPU memory, got 4.00 GiB reserved, 4.00 GiB allocated, "
            "on device 0",
            ended.stdout,
        )
        self.assertIn("CUDA out of memory. Tried to allocate 1024.00 GiB.", ended.stdout)
        self.assertIn("4.00 GiB reserved by test_budgets.py::test_large", ended.stdout)
        self.assertIn("3 tests ran dry for h100, 2 of them launched work", ended.stdout)
        self.assertNotIn("verdict", ended.stdout + ended.stderr)

    def test_budget_of_a_run_that_is_not_dry(self):
        tests = """
            import pytest
            import torch

            @pytest.mark.gpu_memory(at_most="1MiB")
            def test_two():
                torch.ones(2**20, device="cuda")
        """
        ended = self.run_pytest(tests, "--openreg-cuda")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("expected at most 1.00 MiB of GPU memory, got 20.00 MiB", ended.stdout)

    def test_run_without_work_has_checked_nothing(self):
        ended = self.run_pytest(
            "def test_nothing():\n    pass\n", "--openreg-cuda", "--openreg-dry-run=h100"
        )
        self.assertEqual(ended.returncode, 1)
        self.assertIn("nothing was checked: no test launched work", ended.stdout)

    @parametrize(
        "tests, arguments, text",
        [
            ("", ("--openreg-dry-run=h100",), "--openreg-dry-run: expected --openreg-cuda as well"),
            (
                "import pytest\n@pytest.mark.gpu_memory('2GiB')\ndef test_one(): pass\n",
                ("--openreg-cuda",),
                "gpu_memory: expected at_most with a size such as '20GiB'",
            ),
        ],
        name_fn=lambda tests, arguments, text: text.split(":")[0].replace("-", "_"),
    )
    def test_wrong_use_is_explained(self, tests, arguments, text):
        ended = self.run_pytest(tests, *arguments)
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn(text, ended.stdout + ended.stderr)


instantiate_parametrized_tests(TestCommand)
instantiate_parametrized_tests(TestGuesses)
instantiate_parametrized_tests(TestPlugin)

if __name__ == "__main__":
    run_tests()
