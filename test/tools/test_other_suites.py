"""The command that runs other projects' tests on the CPU and on the device, on made-up tests."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from common import TestCase, instantiate_parametrized_tests, parametrize, run_tests, subtest

pytestmark = pytest.mark.sample(0.26)

_TOOLS = Path(__file__).resolve().parents[2] / "tools"

# In the folder of einops' tests, which use CUDA if there is any.
_TESTS = """
import os
import pytest
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"

def test_a_sum():
    assert torch.ones(3, device=device).sum() == 3

def test_b_wrong_on_the_device():
    assert device == "cpu", "knows the CPU alone"

def test_c_crashes_on_the_device():
    if device != "cpu":
        os.abort()

def test_d_fails_everywhere():
    assert False, "everywhere"

def test_e_uses_no_memory():
    pass

@pytest.mark.skipif(device == "cpu", reason="needs a device")
def test_f_skipped_on_the_cpu():
    assert torch.zeros(1, device=device).is_cuda
"""

# These need no torch, so that they start fast.
_RIGHT = """
def test_a():
    pass
"""
_MANY = """
import pytest

@pytest.mark.parametrize("number", range(50))
def test_a(number):
    pass
"""


def run_tool(content, *arguments):
    """Runs the command on a made-up project; returns its result and all outcomes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, report = Path(scratch, "einops", "tests"), Path(scratch, "report.json")
        folder.mkdir(parents=True)
        (folder / "test_it.py").write_text(content)
        result = subprocess.run(
            [
                *(sys.executable, str(_TOOLS / "test_suites.py"), "einops", scratch),
                *arguments,
                *("--report", str(report)),
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        outcomes = json.loads(report.read_text()) if report.exists() else {}
        return result, {name.rpartition("::")[2]: one for name, one in outcomes.items()}


class TestOtherSuites(TestCase):
    def test_what_fails_on_the_device_alone_is_a_difference(self):
        result, outcomes = run_tool(_TESTS)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(
            {name: (one["cpu"]["kind"], one["device"]["kind"]) for name, one in outcomes.items()},
            {
                "test_a_sum": ("passed", "passed"),
                "test_b_wrong_on_the_device": ("passed", "failed"),
                "test_c_crashes_on_the_device": ("passed", "crashed"),
                "test_d_fails_everywhere": ("failed", "failed"),
                "test_e_uses_no_memory": ("passed", "passed"),
                "test_f_skipped_on_the_cpu": ("skipped", "passed"),
            },
        )
        used = {name for name, one in outcomes.items() if one["device"]["allocations"]}
        self.assertEqual(used, {"test_a_sum", "test_f_skipped_on_the_cpu"})
        self.assertIn(
            "6 tests: 3 passed on the device, 2 used its memory; 1 failed on the CPU, "
            "2 on the device alone",
            result.stdout,
        )
        self.assertIn("1 failed on the device alone: AssertionError: knows the CPU", result.stdout)

    def test_a_run_without_differences_is_right(self):
        result, _ = run_tool(_RIGHT)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    @parametrize(
        "content,text",
        [
            subtest(("", "0 of 0 tests"), name="no_tests"),
            subtest(("import no_such_module", "No module named 'no_such_module'"), name="import"),
            subtest((_RIGHT.replace("pass", "assert False"), "1 failed on the CPU"), name="fails"),
        ],
    )
    def test_a_run_in_which_nothing_passes_fails(self, content, text):
        result, _ = run_tool(content)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn(text, result.stdout)

    def test_a_sample_is_the_same_each_time(self):
        _, first = run_tool(_MANY, "--sample=5")
        _, second = run_tool(_MANY, "--sample=5")
        _, other = run_tool(_MANY, "--sample=5", "--seed=1")
        self.assertEqual(len(first), 5)
        self.assertEqual(first.keys(), second.keys())
        self.assertNotEqual(first.keys(), other.keys())

    def test_an_unknown_project_is_refused(self):
        result = subprocess.run(
            [sys.executable, str(_TOOLS / "test_suites.py"), "no-such-project", "."],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 2)
        self.assertIn("expected one of accelerate, ", result.stderr)

    def test_names_of_tests_say_the_device_where_they_said_the_cpu(self):
        code = (
            "from test_suites import on_the_device as f; "
            "print(f('a.py::test_cpu[x-cpu-float32]', 'cuda:0'), f('a.py::test_cpu', 'cuda'), "
            "f('a.py::t[cpu]', None), f('a.py::t[cpus]', 'cuda'))"
        )
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=_TOOLS, capture_output=True, text=True, check=True
        )
        self.assertEqual(
            result.stdout.split(),
            ["a.py::test_cpu[x-cuda:0-float32]", "a.py::test_cpu", "a.py::t[cpu]", "a.py::t[cpus]"],
        )


instantiate_parametrized_tests(TestOtherSuites)

if __name__ == "__main__":
    run_tests()
