"""What CI runs: public workflows, ``.ci/run`` and the linter in a copy of the tree."""

import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
import types
import unittest
import unittest.mock
from pathlib import Path

from source_tree import ROOT
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_openreg._version import DEFAULT_RELEASE, TORCH_RELEASES, __version__

try:
    import yaml
except ImportError:
    yaml = None

_FOLDER = ROOT / ".github" / "workflows"
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A file or folder of the repository that a command names, and a program that the package installs.
_FILE = re.compile(r"(?<![\w./-])(?:\.ci|tools|test|docs|examples)/[\w./-]+")
_PROGRAM = re.compile(r"\.venv/bin/(torch[\w-]*)")


def pythons() -> list[str]:
    """Returns the releases of Python that the package names in its metadata, oldest first."""
    prefix = "Programming Language :: Python :: "
    names = [one.removeprefix(prefix) for one in _PROJECT["classifiers"] if prefix in one]
    return [name for name in names if name.startswith("3.")]


def steps_of(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@unittest.skipIf(yaml is None, "needs the package pyyaml")
class TestWorkflows(TestCase):
    def workflows(self) -> dict[str, dict]:
        found = {path.name: yaml.safe_load(path.read_text()) for path in _FOLDER.glob("*.yml")}
        self.assertEqual(set(found), {"ci.yml", "docs.yml", "weekly.yml", "wheels.yml"})
        return found

    def test_steps_run_commands_or_actions_of_a_version(self):
        for name, workflow in self.workflows().items():
            for step in steps_of(workflow):
                self.assertEqual(len({"run", "uses"} & set(step)), 1, f"{name}: {step}")
                self.assertRegex(
                    step.get("uses", "actions/none@v1"),
                    r"^(actions/[\w-]+@v\d+|pypa/gh-action-pypi-publish@release/v1|\./)$",
                )

    def test_commands_name_files_that_exist(self):
        named = set()
        for workflow in self.workflows().values():
            for step in steps_of(workflow):
                named |= set(_FILE.findall(step.get("run", "")))
                programs = set(_PROGRAM.findall(step.get("run", "")))
                self.assertEqual(programs - set(_PROJECT["scripts"]), set())
        self.assertLessEqual({".ci/run", "tools/wheel.py"}, named)
        self.assertEqual({one for one in named if not (ROOT / one).exists()}, set())

    def test_wheels_are_for_each_release_of_torch_and_pythons_that_are_supported(self):
        matrix = self.workflows()["wheels.yml"]["jobs"]["wheel"]["strategy"]["matrix"]
        self.assertEqual(tuple(matrix["torch"]), TORCH_RELEASES)
        self.assertEqual(matrix["python"], pythons())
        machines = {one["architecture"] for one in matrix["include"]}
        self.assertEqual(machines, set(matrix["architecture"]))

    def test_wheels_are_built_with_the_c_library_that_torch_has(self):
        job = self.workflows()["wheels.yml"]["jobs"]["wheel"]
        image = "quay.io/pypa/manylinux_2_28_${{ matrix.architecture }}"
        self.assertEqual(job["container"], image)
        # There, the Pythons have folders of their own, such as cp311-cp311.
        self.assertNotIn("setup-python", str(job["steps"]))
        self.assertIn("/opt/python/$name-$name/bin/python -m venv", str(job["steps"]))

    def test_wheels_of_all_releases_are_joined_and_published(self):
        jobs = self.workflows()["wheels.yml"]["jobs"]
        built, joined = jobs["wheel"]["strategy"]["matrix"], jobs["join"]["strategy"]["matrix"]
        self.assertEqual(joined["python"], built["python"])
        self.assertEqual(joined["architecture"], built["architecture"])
        self.assertEqual(jobs["publish"]["needs"], ["join", "sdist", "action"])

    def test_only_jobs_that_publish_have_permissions(self):
        # A token of the index, and pushes to the repository.
        given = {}
        for name, workflow in self.workflows().items():
            self.assertEqual(workflow["permissions"], {"contents": "read"})
            for job, content in workflow["jobs"].items():
                if "permissions" in content:
                    given[name, job] = content["permissions"]
        self.assertEqual(
            given,
            {
                ("wheels.yml", "publish"): {"id-token": "write"},
                ("wheels.yml", "tag"): {"contents": "write"},
                ("docs.yml", "publish"): {"contents": "write"},
            },
        )

    def test_release_is_checked_before_anything_is_built(self):
        jobs = self.workflows()["wheels.yml"]["jobs"]
        check = 'python3 tools/release.py "$GITHUB_REF_NAME"'
        self.assertEqual(jobs["release"]["steps"][-1]["run"], check)
        self.assertEqual([jobs[one]["needs"] for one in ("wheel", "sdist")], ["release"] * 2)
        self.assertEqual(jobs["tag"]["needs"], "publish")
        tag = f"v{__version__}"
        for name in ("wheels.yml", "docs.yml"):
            (pattern,) = self.workflows()[name][True]["push"]["tags"]
            # In GitHub's patterns, too, + repeats, but a dot is a dot.
            expression = pattern.replace(".", r"\.")
            self.assertRegex(tag, f"^{expression}$")
            # The tag that the workflow moves starts nothing.
            self.assertNotRegex(tag.rpartition(".")[0], f"^{expression}$")

    def test_sources_and_wheels_get_the_address_of_the_repository(self):
        address = "--url ${{ github.server_url }}/${{ github.repository }}"
        jobs = self.workflows()["wheels.yml"]["jobs"]
        for name in ("join", "sdist"):
            scripts = "\n".join(step.get("run", "") for step in jobs[name]["steps"])
            self.assertIn(address, scripts)
            self.assertIn("twine check --strict", scripts)

    def test_the_action_runs_with_sources_for_every_change_and_with_the_wheel(self):
        inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
        used = {}
        for name, workflow in self.workflows().items():
            for job, content in workflow["jobs"].items():
                for step in content["steps"]:
                    if step.get("uses") == "./":
                        self.assertLessEqual(set(step["with"]), set(inputs))
                        used.setdefault((name, job), []).append(step)
        in_change, refused = used["ci.yml", "action"]
        self.assertEqual(in_change["with"]["package"], "source")
        self.assertEqual(in_change["with"]["torch"], DEFAULT_RELEASE)
        self.assertEqual(refused["with"], {"devices": 0})
        checks = self.workflows()["ci.yml"]["jobs"]["action"]["steps"]
        self.assertEqual(checks[-1]["run"], 'test "${{ steps.refused.outcome }}" = failure')
        self.assertIn("steps.wheel", used["wheels.yml", "action"][0]["with"]["package"])
        releases = self.workflows()["wheels.yml"]["jobs"]["action"]["strategy"]["matrix"]["torch"]
        self.assertEqual(tuple(releases), TORCH_RELEASES)
        self.assertEqual(used["docs.yml", "publish"][0]["with"]["torch"], DEFAULT_RELEASE)

    def test_every_change_runs_all(self):
        workflow = self.workflows()["ci.yml"]
        # YAML 1.1 takes the key "on" for true.
        self.assertLessEqual({"push", "pull_request"}, set(workflow[True]))
        commands = {step.get("run") for step in steps_of(workflow)}
        self.assertLessEqual({".ci/run", ".ci/run sanitizers"}, commands)

    def test_every_change_runs_with_each_other_release_of_torch(self):
        job = self.workflows()["ci.yml"]["jobs"]["release"]
        releases = [one for one in TORCH_RELEASES if one != DEFAULT_RELEASE]
        self.assertEqual(job["strategy"]["matrix"]["torch"], releases)
        self.assertEqual(job["steps"][-1], {"run": ".ci/run ${{ matrix.torch }}"})

    def test_every_change_runs_with_each_other_python(self):
        jobs = self.workflows()["ci.yml"]["jobs"]
        of_all = [step.get("with", {}).get("python-version") for step in jobs["all"]["steps"]]
        matrix = jobs["python"]["strategy"]["matrix"]["python"]
        self.assertEqual([one for one in of_all if one] + matrix, pythons())
        self.assertIn(
            {"python-version": "${{ matrix.python }}"},
            [step.get("with") for step in jobs["python"]["steps"]],
        )
        self.assertEqual(jobs["python"]["steps"][-1], {"run": f".ci/run {DEFAULT_RELEASE}"})


class TestPythons(TestCase):
    """The releases of Python that the metadata names."""

    def test_oldest_is_the_one_that_is_required(self):
        self.assertEqual(f">={pythons()[0]}", _PROJECT["requires-python"])

    def test_there_is_no_gap(self):
        minors = [int(one.removeprefix("3.")) for one in pythons()]
        self.assertEqual(minors, list(range(minors[0], minors[-1] + 1)))


class TestNoxfile(TestCase):
    """The copy in which nox runs the tests; nox itself is not needed here."""

    def test_copy_keeps_links(self):
        nox = types.ModuleType("nox")
        nox.options = types.SimpleNamespace()
        nox.session = lambda name: lambda function: function
        nox.Session = object
        with (
            tempfile.TemporaryDirectory() as folder,
            unittest.mock.patch.dict(sys.modules, nox=nox),
        ):
            session = types.SimpleNamespace(
                create_tmp=lambda: folder,
                run=lambda *command, **_: "\0".join(["test/common.py", "test/core/common.py"]),
            )
            copy_tree = runpy.run_path(str(ROOT / "noxfile.py"))["copy_tree"]
            for _ in range(2):
                link = copy_tree(session) / "test" / "core" / "common.py"
                self.assertTrue(link.is_symlink() and link.is_file())
                self.assertEqual(link.resolve(), link.parents[1] / "common.py")


class TestScript(TestCase):
    """The functions with which ``.ci/run`` runs its steps; its steps themselves do not run here."""

    def run_steps(self, *steps: str) -> subprocess.CompletedProcess[str]:
        functions, separator, _ = (ROOT / ".ci" / "run").read_text().partition("copy_tree() {")
        self.assertTrue(separator)
        program = "\n".join([functions, "fails() { false; echo 'went on'; }", *steps])
        return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)

    def test_a_failed_step_ends_itself_and_not_the_run(self):
        run = self.run_steps('step "one" fails', 'step "two" echo second', 'step "three" fails')
        self.assertEqual(run.returncode, 1)
        self.assertNotIn("went on", run.stdout)
        self.assertIn("second", run.stdout)
        self.assertEqual(re.findall("^FAILED: (.*)$", run.stdout, re.MULTILINE), ["one", "three"])

    def test_a_failed_required_step_ends_the_run(self):
        run = self.run_steps('required_step "one" fails', 'step "two" echo second')
        self.assertEqual(run.returncode, 1)
        self.assertNotIn("second", run.stdout)

    def test_steps_that_pass_are_a_success(self):
        run = self.run_steps('required_step "one" true', 'step "two" true')
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertNotIn("FAILED", run.stdout)

    def test_a_step_beside_others_ends_with_its_output_and_its_result(self):
        for command, failed in (("echo 'output of one'; true", []), ("false; true", ["one"])):
            # Neither can end without the other.
            with tempfile.TemporaryDirectory() as folder:
                pipe = Path(folder) / "pipe"
                run = self.run_steps(
                    f"mkfifo {pipe}",
                    f"one() {{ echo > {pipe}; {command}; }}",
                    f"two() {{ cat {pipe}; }}",
                    'step_beside "one" one; step "two" two; joined; step "three" true',
                )
            with self.subTest(command=command):
                self.assertEqual(run.returncode, int(bool(failed)), run.stderr)
                found = re.findall("^FAILED: (.*)$", run.stdout, re.MULTILINE)
                self.assertEqual(found, failed)
                self.assertEqual("output of one" in run.stdout, not failed)
                lines = re.findall(r"^(\w+): \d+ s", run.stdout, re.MULTILINE)
                self.assertEqual(lines[:3], ["two", "one", "three"])


class TestLint(TestCase):
    def test_words_are_checked_in_a_copy_that_is_no_repository(self):
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary).resolve()
            for folder in ("tools", "docs", "env", "build"):
                (copy / folder).mkdir()
            shutil.copy(ROOT / "tools" / "lint.py", copy / "tools")
            refused = "".join(("no", "body"))
            for name in ("docs/page.md", "env/installed.py", "build/made.cpp"):
                (copy / name).write_text(f"{refused} knows\n")
            (copy / "env" / "pyvenv.cfg").touch()
            command = [sys.executable, str(copy / "tools" / "lint.py"), "words"]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, 1, run.stderr)
            self.assertEqual(run.stdout.count(refused), 1, run.stdout)
            self.assertIn("docs/page.md:1", run.stdout)


if __name__ == "__main__":
    run_tests()
