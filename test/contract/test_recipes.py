"""Recipes work when they are pasted: those for CI, the page for beginners, and the Dockerfile."""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import pytest
from installation import make_fresh_environment, make_wheel
from source_tree import ROOT, compiler
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_openreg._version import (
    DEFAULT_RELEASE,
    TORCH_RELEASES,
    __version__,
    torch_requirement,
)

pytestmark = pytest.mark.sample(0.13)

try:
    import yaml
except ImportError:
    yaml = None

PAGE = (ROOT / "docs" / "start.md").read_text()
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Returns the instructions of a Dockerfile, each with its arguments."""
    lines = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    return [(one.split(" ", 1)[0], one.split(" ", 1)[1]) for one in lines]


def with_this_torch(script: str) -> str:
    """Replaces the release of torch in commands of pip by the version that pip has installed."""
    # torch.__version__ may have a local part, such as "+cu132", that the package's does not have.
    installed = importlib.metadata.version("torch")
    return re.sub(r"torch==[\d.]+\.\*", f"torch=={installed}", script)


@unittest.skipIf(compiler() is None, "needs a C++ compiler, without which setup.py ends")
class TestPasted(TestCase):
    """Each test has a fresh environment with torch, and a folder with the CUDA project."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.wheels = Path(tempfile.mkdtemp()).resolve()
        cls.addClassCleanup(shutil.rmtree, cls.wheels)
        cls.wheel = make_wheel(cls.wheels)

    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp()).resolve()
        self.addCleanup(shutil.rmtree, self.folder)
        self.project = self.folder / "project"
        shutil.copytree(ROOT / "examples" / "cuda_project", self.project)
        # The package index is the folder with the wheel; what is installed is not looked up.
        self.environment = make_fresh_environment(self.folder / "environment") | {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_CONFIG_FILE": os.devnull,  # a constraint of the machine's may exclude this torch
        }

    def run_script(self, script, folder=None, **variables):
        result = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=folder or self.project,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 0, f"{script}\n{result.stdout}")
        return result.stdout

    def run_page(self, script):
        """Runs commands of the page, for the torch that is installed, with a wheel that is made."""
        output = ""
        for line in with_this_torch(script).splitlines():
            if line.startswith("pip wheel "):
                *command, folder, source = shlex.split(line)
                self.assertEqual(command, ["pip", "wheel", "--no-deps", "--wheel-dir"])
                self.assertIn(source, ("../torch_openreg", "$SOURCE"))
                shutil.copytree(self.wheels, self.project / folder)
            else:
                output += self.run_script(line)
        return output

    def check_tests_passed(self, output):
        self.assertRegex(output, r"(?m)^=+ 5 passed in .*=+$")

    def test_environment_has_torch_and_not_this_package(self):
        listed = self.run_script("pip list --format freeze")
        self.assertRegex(listed, r"(?m)^torch==")
        self.assertNotIn("torch_openreg", listed.replace("-", "_"))

    @unittest.skipIf(yaml is None, "needs the package pyyaml")
    def test_workflow_runs_the_tests_of_a_project(self):
        workflow = yaml.safe_load(blocks("yaml")[0])
        (job,) = workflow["jobs"].values()
        self.assertIn("push", workflow[True])  # YAML 1.1 takes the key "on" for true
        self.assertLessEqual(job["timeout-minutes"], 20)
        self.assertRegex(job["env"]["SOURCE"], r"^git\+https://\S+/OWNER/torch_openreg@\w+$")
        (cache,) = [step for step in job["steps"] if "actions/cache" in step.get("uses", "")]
        steps = [step for step in job["steps"] if "run" in step]
        outputs = [self.run_page(step["run"]) for step in steps]
        installed = f"Successfully installed torch-openreg-{re.escape(__version__)}"
        self.assertRegex("".join(outputs), rf"(?m)^{installed}$")
        self.check_tests_passed(outputs[-1])
        # The wheel is built where the cache has none: for the same torch, Python and sources.
        (build,) = [step for step in steps if "if" in step]
        self.assertEqual(build["if"], f"steps.{cache['id']}.outputs.cache-hit != 'true'")
        self.assertIn(f"--wheel-dir {cache['with']['path']} ", build["run"])
        (release,) = re.findall(r"torch==([\d.]+)\.\*", steps[0]["run"])
        self.assertIn(release, TORCH_RELEASES)
        (python,) = [
            one["with"]["python-version"] for one in job["steps"] if "setup-python" in str(one)
        ]
        self.assertEqual(
            cache["with"]["key"], f"torch{release}-python{python}-${{{{ env.SOURCE }}}}"
        )

    @pytest.mark.slow
    @unittest.skipIf(yaml is None, "needs the package pyyaml")
    def test_workflow_with_the_action_runs_them_too(self):
        action = yaml.safe_load((ROOT / "action.yml").read_text())
        use, *others = yaml.safe_load(blocks("yaml")[1])
        self.assertEqual(use["uses"], "OWNER/torch_openreg@0123abc")
        self.assertLessEqual(set(use["with"]), set(action["inputs"]))
        self.assertEqual(use["with"]["package"], "source")  # no wheel is published
        self.run_script("pip install torch_openreg")
        # What the action leaves for the later steps; test_action.py runs its own.
        settings = {
            "OPENREG_DEVICE_TYPE": use["with"]["mode"],
            "OPENREG_DEVICE_COUNT": str(use["with"]["devices"]),
        }
        outputs = [self.run_script(step["run"], **settings) for step in others]
        self.check_tests_passed(outputs[-1])

    def test_commands_of_the_page_work_one_after_the_other(self):
        install, run_tests_, run_program, *_ = blocks("sh")
        self.assertIn(f"'torch<{torch_requirement().rpartition('<')[2]}'", install)
        self.assertIn("Successfully installed torch-openreg", self.run_page(install))
        self.check_tests_passed(self.run_script(run_tests_))
        devices = re.findall(r"(?m)^cuda:(\d): loss", self.run_script(run_program))
        self.assertEqual(devices, ["0", "1", "2", "3"])

    @pytest.mark.slow
    def test_launchers_of_the_page_train_one_model_on_a_device_each(self):
        install, _, _, launch, torchrun = blocks("sh")
        self.run_page(install)
        for command in (launch, torchrun):
            output = self.run_script(command)
            ranks = re.findall(r"(?m)^rank (\d) on cuda:\1: loss .*, parameters (.*)$", output)
            self.assertEqual(sorted(rank for rank, _ in ranks), ["0", "1"])
            self.assertEqual(len({parameters for _, parameters in ranks}), 1)

    def test_dockerfile_installs_and_runs(self):
        """Runs the commands of the Dockerfile, with apt-get and the compilation left out."""
        steps = instructions((ROOT / "Dockerfile").read_text())
        self.assertLessEqual(len(steps), 10)
        programs = self.folder / "environment" / "bin"
        (programs / "apt-get").write_text('#!/bin/sh\necho "$@" >> apt.log\n')
        (programs / "apt-get").chmod(0o755)
        stages = []
        for name, text in steps:
            if name == "FROM":
                stages.append(text)
                root = self.folder / f"stage{len(stages)}"
                root.mkdir()
                continue
            # Paths of the image are below the folder of the stage.
            placed = re.sub(r"(?<![\w:/.])/(?=source|wheels|project)", f"{root}/", text)
            if name == "COPY" and text == ". /source":
                (root / "source").symlink_to(ROOT)
            elif name == "COPY":
                self.assertEqual(text, "--from=build /wheels /wheels")
                shutil.copytree(self.folder / "stage1" / "wheels", root / "wheels")
            elif name == "RUN" and text.startswith("pip wheel"):
                self.assertIn("--no-build-isolation", shlex.split(text))
                self.assertTrue((root / "source" / "setup.py").is_file())
                self.assertEqual(shlex.split(placed)[-1], str(root / "source"))
                target = shlex.split(placed)[shlex.split(placed).index("--wheel-dir") + 1]
                shutil.copytree(self.wheels, target)
            elif name == "RUN":
                self.run_script(with_this_torch(placed), root)
            elif name == "WORKDIR":
                shutil.copytree(self.project, placed)
                folder = placed
            else:
                self.assertEqual(name, "CMD")
                self.check_tests_passed(self.run_script(shlex.join(json.loads(text)), folder))
        self.assertEqual(stages, ["python:3.11-slim AS build", "python:3.11-slim"])
        # The compiler is in the first stage only.
        apt = (self.folder / "stage1" / "apt.log").read_text().splitlines()
        self.assertEqual(apt[0], "update")
        self.assertRegex(apt[1], r"^install --yes .*g\+\+$")
        self.assertFalse((self.folder / "stage2" / "apt.log").exists())


class TestDockerfile(TestCase):
    def test_it_has_the_default_release_of_torch_for_the_cpu(self):
        text = (ROOT / "Dockerfile").read_text()
        self.assertIn(f"'torch=={DEFAULT_RELEASE}.*'", text)
        installs = [one for name, one in instructions(text) if name == "RUN" and "torch" in one]
        installs += [one for name, one in instructions(text) if "/wheels/*.whl" in one]
        for one in installs:
            self.assertIn(f"--extra-index-url {CPU_INDEX}", one)

    def test_what_is_built_is_left_out_of_the_image(self):
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        built = (ROOT / ".gitignore").read_text().splitlines()
        for folder in ("build", "dist", "torch_openreg/include", "torch_openreg/lib", ".venv"):
            self.assertIn(folder, ignored)
            self.assertIn(f"/{folder}/", built)


if __name__ == "__main__":
    run_tests()
