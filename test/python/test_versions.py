"""The policy of versions: which torch a build is for, and how the build finds it."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import venv
from importlib.util import find_spec
from pathlib import Path

import torch
from common import DEVICE_TYPE, OpenRegTestCase, run_program, run_tests

import torch_openreg
from torch_openreg import _torch_release, _version
from torch_openreg.extras.cuda import absent, bindings, tunable

ROOT = Path(__file__).resolve().parents[2]
BACKEND = ROOT / "tools" / "backend"


class TestPolicy(OpenRegTestCase):
    def test_a_release_is_the_first_two_numbers(self):
        for version in ("2.15", "2.15.0", "2.15.1+cpu", "2.15.0a0+git1234", "2.15.0+cu132"):
            self.assertEqual(_version.release_of(version), "2.15")

    def test_releases_are_in_order(self):
        numbers = [tuple(map(int, one.split("."))) for one in _version.TORCH_RELEASES]
        self.assertEqual(numbers, sorted(set(numbers)))

    def test_the_torch_that_is_here_is_served(self):
        _version.check_torch(torch.__version__)
        self.assertIn(
            ".".join(map(str, _torch_release.TORCH_RELEASE)),
            _version.TORCH_RELEASES,
        )

    def test_a_build_requires_the_release_that_it_was_compiled_against(self):
        self.assertEqual(_version.torch_requirement("2.14"), "torch==2.14.*")

    def test_the_sources_require_any_release_that_they_serve(self):
        first, last = _version.TORCH_RELEASES[0], _version.TORCH_RELEASES[-1]
        match = re.fullmatch(r"torch>=(\S+),<2\.(\d+)", _version.torch_requirement())
        self.assertEqual(match[1], first)
        self.assertEqual(int(match[2]), int(last.split(".")[1]) + 1)

    def test_a_wheel_for_others_says_its_release(self):
        self.assertEqual(_version.labeled_version("2.15"), f"{_version.__version__}+torch2.15")

    def test_torch_of_another_release_is_refused_with_what_to_type(self):
        newest = _version.TORCH_RELEASES[-1]
        for version in ("1.0.0", "2.12.1+cpu", "3.0.0"):
            with self.assertRaises(_version.VersionError) as raised:
                _version.check_torch(version)
            text = str(raised.exception)
            self.assertIn(f"but torch {version} is installed", text)
            self.assertTrue(text.endswith(f"pip install 'torch=={newest}.*'"), text)
            self.assertNotIn("\n", text)

    def test_the_note_of_the_build_is_the_torch_that_it_was_compiled_against(self):
        note = Path(torch_openreg.__file__).parent / "lib" / "TORCH_VERSION"
        built_for = note.read_text().strip()
        self.assertEqual(_version.release_of(built_for), _version.release_of(torch.__version__))


def name_and_condition(line: str) -> tuple[str, str] | None:
    match = re.match(r"#define OPENREG_TORCH_(HAS_\w+) OPENREG_TORCH_AT_LEAST\((.*)\)$", line)
    match = match or re.match(r"(HAS_\w+) = TORCH_RELEASE (?:>=|<) \((.*)\)$", line)
    return (match[1], match[2]) if match else None


class TestDifferences(OpenRegTestCase):
    HEADER = ROOT / "include" / "torch_openreg" / "core" / "TorchRelease.h"
    MODULE = ROOT / "torch_openreg" / "_torch_release.py"

    def differences(self, path):
        """What differs, by name: the release; each is preceded by a comment with the release."""
        found = {}
        release = None
        for line in path.read_text().splitlines():
            comment = re.match(r"(?://|#) (2\.\d+): ", line)
            release = comment[1] if comment else release
            entry = name_and_condition(line)
            if entry is not None:
                name, condition = entry
                self.assertEqual(condition.replace(", ", "."), release, line)
                found[name] = release
                release = None
        return found

    def test_each_difference_names_its_release(self):
        header, module = self.differences(self.HEADER), self.differences(self.MODULE)
        self.assertGreater(len(header), 0)
        self.assertEqual(set(module), {name for name in _torch_release.__all__ if "HAS" in name})
        self.assertEqual(header, {name: module[name] for name in header})

    def test_differences_are_of_releases_that_are_served_beside_older_ones(self):
        for release in self.differences(self.MODULE).values():
            self.assertIn(release, _version.TORCH_RELEASES[1:])

    def test_no_other_file_compares_versions_of_torch(self):
        files = [*(ROOT / "torch_openreg").rglob("*.py"), *(ROOT / "csrc").rglob("*.cpp")]
        files += [*(ROOT / "csrc").rglob("*.h"), *(ROOT / "include").rglob("*.h")]
        comparing = re.compile(r"TORCH_VERSION_M|TORCH_RELEASE\b|TORCH_AT_LEAST")
        found = {path.name for path in files if comparing.search(path.read_text())}
        self.assertEqual(found, {"TorchRelease.h", "_torch_release.py"})


class TestTorchsInterfaces(OpenRegTestCase):
    """The names that later releases of torch need exist, and those that they lack are listed."""

    def test_differences_are_as_the_installed_torch_has_them(self):
        from torch._C import Generator

        self.assertEqual(hasattr(Generator, "philox_state"), _torch_release.HAS_PHILOX_STATE)
        self.assertEqual(
            hasattr(torch.accelerator, "random"), _torch_release.HAS_ACCELERATOR_RANDOM
        )
        with torch.autocast(DEVICE_TYPE):
            self.assertEqual(
                torch.is_autocast_enabled(),
                DEVICE_TYPE == "cuda" or _torch_release.HAS_ACCELERATOR_AUTOCAST,
            )
        self.assertEqual(hasattr(torch.ops.aten, "cholesky"), _torch_release.HAS_CHOLESKY)
        self.assertEqual(
            find_spec("torch.profiler._pattern_matcher") is not None,
            _torch_release.HAS_PROFILER_PATTERNS,
        )
        source = Path(torch.__file__).parent / "_inductor" / "codegen" / "common.py"
        self.assertEqual(
            "_inductor_backend_init" in source.read_text(), _torch_release.HAS_INDUCTOR_INIT
        )
        source = Path(torch.__file__).parent / "optim" / "optimizer.py"
        self.assertEqual(
            'accelerator.type in {"cuda", "xpu"}' not in source.read_text(),
            _torch_release.HAS_OPTIMIZER_CHECK,
        )
        source = Path(torch.__file__).parent / "_dynamo" / "variables" / "optimizer.py"
        self.assertEqual(
            "_safe_to_set_capturable" in source.read_text(),
            _torch_release.HAS_CAPTURABLE_WHILE_COMPILING,
        )
        include = Path(torch.__file__).parent / "include"
        session = (include / "kineto" / "IActivityProfiler.h").read_text()
        self.assertEqual(
            "toggleCollectionDynamic" in session, _torch_release.HAS_DYNAMIC_COLLECTION
        )
        self.assertEqual(
            "out" in torch.ops.aten._scaled_grouped_mm_v2.overloads(),
            _torch_release.HAS_STRUCTURED_GROUPED_PRODUCT,
        )
        graphs = (Path(torch.__file__).parent / "cuda" / "graphs.py").read_text()
        self.assertEqual("super().capture_end_pre()" in graphs, _torch_release.HAS_GRAPH_HOOKS)
        pinned = (include / "ATen" / "core" / "CachingHostAllocator.h").read_text()
        self.assertEqual("record_history" in pinned, _torch_release.HAS_PINNED_HISTORY)
        observer = include / "torch" / "csrc" / "profiler" / "orchestration" / "observer.h"
        self.assertEqual(
            "getGlobal()" in observer.read_text(), _torch_release.HAS_OWNED_PROFILER_STATE
        )


class TestFunctionsOfCuda(OpenRegTestCase):
    """The tables of the device type CUDA. Here, so that builds with CUDA are checked, too."""

    def names_in_torch(self) -> set[str]:
        names: set[str] = set()
        for path in Path(torch.__file__).parent.rglob("*.py"):
            text = path.read_text(errors="replace")
            names.update(re.findall(r"\b_C\.(_cuda_\w+)", text))
            for imported in re.findall(r"from torch\._C import ([^()\n]+|\([^)]*\))", text):
                names.update(re.findall(r"\b_cuda_\w+", imported))
        return names

    def test_every_function_of_cuda_that_torch_uses_is_supplied_refused_or_left_out(self):
        supplied = {
            name for name in {**bindings.SUPPLIED, **tunable.SUPPLIED} if name.startswith("_cuda_")
        }
        listed = [supplied, set(absent.REFUSED), set(absent.LEFT_OUT)]
        names = self.names_in_torch()
        later = {
            name
            for name, release in _torch_release.LATER_CUDA_FUNCTIONS.items()
            if release > _torch_release.TORCH_RELEASE
        }
        self.assertGreater(len(names), 80)
        self.assertEqual(names - set().union(*listed), set(), "in no table")
        self.assertEqual(sum(map(len, listed)), len(set().union(*listed)), "in two tables")
        self.assertEqual(set().union(*listed) - names, later, "not used by torch")


class TestBuildBackend(OpenRegTestCase):
    """The backend as pip runs it: isolated, with the interpreter of the user's environment."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.environment = Path(folder.name)
        venv.create(cls.environment, symlinks=True)
        cls.python = cls.environment / "bin" / "python"
        variables = {"base": str(cls.environment), "platbase": str(cls.environment)}
        cls.packages = Path(sysconfig.get_path("purelib", "venv", variables))

    def install_torch(self, version):
        info = self.packages / f"torch-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        self.addCleanup(info.rmdir)
        self.addCleanup((info / "METADATA").unlink)

    def call(self, expression):
        """Evaluates an expression with only the packages of an isolated build: this test's."""
        program = f"import json, openreg_build; print(json.dumps(openreg_build.{expression}))"
        return subprocess.run(
            [self.python, "-c", program],
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(BACKEND), *sys.path]),
                "PYTHONNOUSERSITE": "1",
            },
            cwd=self.environment,
            capture_output=True,
            text=True,
        )

    def required(self, kind="wheel"):
        result = self.call(f"get_requires_for_build_{kind}()")
        self.assertEqual(result.returncode, 0, result.stderr)
        return [re.split(r"[>=<]", one, maxsplit=1)[0] for one in json.loads(result.stdout)]

    def test_torch_is_required_where_the_user_has_none(self):
        self.assertEqual(self.required(), ["ninja", "pyyaml", "torch"])
        self.assertEqual(self.required("editable"), ["ninja", "pyyaml", "torch"])

    def test_torch_of_the_user_is_the_one_to_build_for(self):
        self.install_torch(f"{_version.TORCH_RELEASES[-1]}.0+cpu")
        self.assertEqual(self.required(), ["ninja", "pyyaml"])
        self.assertEqual(self.required("editable"), ["ninja", "pyyaml"])

    def test_torch_that_is_not_served_is_refused_in_one_line(self):
        self.install_torch("2.12.1")
        result = self.call("get_requires_for_build_wheel()")
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"^torch_openreg: .*supports torch .*'torch==\S+'\n$")

    def test_user_s_packages_are_found_and_those_of_the_build_are_not(self):
        folders = json.loads(self.call("search_path_of_user()").stdout)
        self.assertIn(str(self.packages), folders)
        self.assertNotIn(str(BACKEND), folders)

    def test_setuptools_that_is_too_old_is_refused_in_one_line(self):
        required = re.search(r'"setuptools>=(\d+)"', (ROOT / "pyproject.toml").read_text())[1]
        program = f"""
            import sys, setuptools
            setuptools.__version__ = "65.5.0"
            sys.path.insert(0, {str(BACKEND)!r})
            import openreg_build
        """
        result = run_program(program, expect_success=False)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(
            result.stderr,
            f"torch_openreg: building needs setuptools {required} or newer, but 65.5.0 is "
            f"installed: pip install 'setuptools>={required}'\n",
        )

    def test_a_source_distribution_needs_no_torch(self):
        self.assertEqual(self.required("sdist"), [])


class TestSourceDistribution(OpenRegTestCase):
    @unittest.skipUnless((ROOT / ".git").exists(), "needs a clone and git")
    def test_it_holds_the_files_of_the_repository_and_is_built_without_torch(self):
        files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        files = [name for name in files if (ROOT / name).is_file()]
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            for name in files:
                target = copy / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((ROOT / name).read_bytes())
            # Built, so not to be distributed.
            (copy / "torch_openreg" / "lib").mkdir()
            (copy / "torch_openreg" / "lib" / "libopenreg.so").touch()
            (copy / "build").mkdir()
            (copy / "build" / "torch.h").touch()
            program = f"""
                import sys
                sys.modules["torch"] = None
                sys.path.insert(0, {str(copy / "tools" / "backend")!r})
                import os, tarfile, openreg_build
                os.chdir({str(copy)!r})
                name = openreg_build.build_sdist({folder!r})
                print(name)
                print(*tarfile.open(os.path.join({folder!r}, name)).getnames(), sep="\\n")
            """
            output = run_program(program, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout
        name = f"torch_openreg-{torch_openreg.__version__}"
        _, begin, names = output.partition(f"\n{name}.tar.gz\n")
        self.assertTrue(begin, output[-500:])
        inside = {one.removeprefix(f"{name}/") for one in names.splitlines()}
        self.assertEqual(set(files) - inside, set())
        new = {
            one
            for one in inside - set(files) - {name}
            if not any(file.startswith(f"{one}/") for file in files)
        }
        self.assertEqual({one for one in new if ".egg-info" not in one}, {"PKG-INFO", "setup.cfg"})


if __name__ == "__main__":
    run_tests()
