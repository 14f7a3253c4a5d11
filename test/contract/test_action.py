"""The GitHub Action in ``action.yml``: its shell steps run here as a runner runs them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from source_tree import ROOT
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_openreg._version import TORCH_RELEASES, __version__, torch_requirement

try:
    import yaml
except ImportError:
    yaml = None

INDEX = "https://download.pytorch.org/whl/cpu"
# In place of python: pip only notes its arguments, and fails if one of them contains $FAILING.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then
  shift 2
  echo "$@" >> "$PIP_LOG"
  case "$*" in *"$FAILING"*) exit 1;; esac
  exit 0
fi
exec {python} "$@"
"""


def evaluate(text: str, inputs: dict[str, str]) -> str:
    """Replaces GitHub's expressions. One that the test does not know is an error."""
    values = {f"inputs.{name}": value for name, value in inputs.items()}
    values["github.action_path"] = str(ROOT)
    return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda found: values[found[1]], text)


@unittest.skipIf(yaml is None, "needs the package pyyaml")
class TestAction(TestCase):
    def setUp(self):
        super().setUp()
        self.action = yaml.safe_load((ROOT / "action.yml").read_text())
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        python = self.folder / "bin" / "python"
        python.parent.mkdir()
        python.write_text(PYTHON.format(python=sys.executable))
        python.chmod(0o755)
        (self.folder / "pip.log").touch()

    def run_action(self, failing="no such argument", settings=(), **inputs):
        """Runs the steps until one fails; returns whether all passed, and what they printed."""
        inputs = {name.replace("_", "-"): value for name, value in inputs.items()}
        declared = {name: str(one["default"]) for name, one in self.action["inputs"].items()}
        self.assertLessEqual(set(inputs), set(declared))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG", "TORCH_"))}
        kept |= {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "FAILING": failing}
        kept |= {"PIP_LOG": str(self.folder / "pip.log"), **dict(settings)}
        file, script = self.folder / "env", self.folder / "script.sh"
        file.write_text("")
        output = ""
        for step in self.action["runs"]["steps"]:
            script.write_text(step["run"])
            own = {k: evaluate(v, declared | inputs) for k, v in step.get("env", {}).items()}
            exported = dict(line.split("=", 1) for line in file.read_text().splitlines())
            result = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
                cwd=self.folder,
                env=kept | exported | own | {"GITHUB_ENV": str(file)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            output += result.stdout
            if result.returncode != 0:
                return False, output
        return True, output

    def installed(self):
        return (self.folder / "pip.log").read_text().splitlines()

    def test_it_is_a_composite_action_whose_inputs_are_described_and_used(self):
        self.assertEqual(self.action["runs"]["using"], "composite")
        text = str(self.action["runs"])
        for name, one in self.action["inputs"].items():
            self.assertEqual(set(one), {"description", "default"}, name)
            self.assertIn(f"inputs.{name} ", text)
        for step in self.action["runs"]["steps"]:
            self.assertEqual(step["shell"], "bash")
            # An input in a script would be code of the shell.
            self.assertNotIn("${{", step["run"])

    def test_default_is_two_devices_of_cuda_with_the_sources(self):
        passed, output = self.run_action()
        self.assertTrue(passed, output)
        torch = f"install {torch_requirement()} numpy --extra-index-url {INDEX}"
        self.assertEqual(self.installed(), [torch, f"install {ROOT}"])
        self.assertRegex(output, rf"torch_openreg {re.escape(__version__)}, torch .*: 2 x cuda\n$")

    def test_type_number_release_and_wheel_can_be_chosen(self):
        passed, output = self.run_action(
            mode="openreg", devices="3", torch=TORCH_RELEASES[-1], package="wheel", torch_index="i"
        )
        self.assertTrue(passed, output)
        torch = f"install torch=={TORCH_RELEASES[-1]}.* numpy --extra-index-url i"
        self.assertEqual(self.installed(), [torch, f"install torch_openreg=={__version__}"])
        self.assertRegex(output, r": 3 x openreg\n$")

    @parametrize(
        "inputs,text",
        [
            subtest(({"mode": "gpu"}, "mode: expected cuda or openreg, got 'gpu'"), name="mode"),
            subtest(({"devices": "0"}, "devices: expected .* got '0'"), name="no_device"),
            subtest(({"devices": "65"}, "devices: expected .* got '65'"), name="too_many_devices"),
            subtest(({"devices": ""}, "devices: expected .* got ''"), name="empty_number"),
            subtest(({"torch": "2.12"}, "torch: expected one of .* got '2.12'"), name="release"),
        ],
    )
    def test_wrong_input_installs_nothing_and_is_an_annotation(self, inputs, text):
        passed, output = self.run_action(**inputs)
        self.assertFalse(passed)
        self.assertRegex(output, f"(?m)^::error title=torch_openreg::{text}$")
        self.assertEqual(self.installed(), [])

    @parametrize("package", ["wheel", "source", "dist/one.whl"])
    def test_failed_installation_ends_the_run(self, package):
        failing = {"wheel": "torch_openreg==", "source": str(ROOT)}.get(package, package)
        passed, output = self.run_action(failing=failing, package=package)
        self.assertFalse(passed)
        self.assertEqual(len(self.installed()), 2)
        self.assertNotIn(" x cuda", output)

    @parametrize(
        "settings,text",
        [
            subtest(
                (
                    {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                    f"the accelerator of torch .* is {'cuda' if torch.version.cuda else None}",
                ),
                name="package_that_is_not_loaded",
            ),
            subtest(({"CUDA_VISIBLE_DEVICES": "0"}, "got 1"), name="one_device_that_is_visible"),
        ],
    )
    def test_run_without_its_devices_is_refused(self, settings, text):
        passed, output = self.run_action(settings=settings.items())
        self.assertFalse(passed)
        expected = "expected 2 devices of the type cuda from torch_openreg"
        self.assertRegex(output, f"(?m)^::error title=torch_openreg::{expected}, .*{text}$")


instantiate_parametrized_tests(TestAction)

if __name__ == "__main__":
    run_tests()
