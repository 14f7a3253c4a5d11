"""Installation: where Python finds the package, and that environments share one build."""

import importlib.util
import json
import shutil
import tempfile
import unittest
from pathlib import Path

import pytest
import torch
from installation import install, make_environment, make_tree, run, site_packages
from source_tree import ROOT, compiler
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

import torch_openreg

pytestmark = pytest.mark.sample(0.12)

# Prints what ninja would run for each extension, and what headers are compiled with.
COMMANDS = """
import json
import sys
from pathlib import Path

import setuptools
from torch.utils import cpp_extension

printed = []
built = {}

def setup(**options):
    built.update(options)

setuptools.setup = setup
sys.argv[1:] = []
exec(compile(Path("setup.py").read_text(), "setup.py", "exec"), {"__file__": "setup.py"})
Build = built["cmdclass"]["build_ext"]

def precompile_headers(self, command):
    printed.append([*command, *self.include_dirs])
    self.compiler.link_shared_object = lambda *arguments, **options: None

Build.precompile_headers = precompile_headers
cpp_extension._run_ninja_build = lambda folder, *arguments, **options: printed.append(
    Path(folder, "build.ninja").read_text()
)
command = Build(setuptools.Distribution({"ext_modules": built["ext_modules"]}))
command.ensure_finalized()
command.run = None
setuptools.command.build_ext._build_ext.run(command)
print(json.dumps(printed))
"""


WAYS = {
    "script": lambda folder: [str(folder / "probe.py")],
    "c": lambda folder: ["-c", (folder / "probe.py").read_text()],
    "m": lambda folder: ["-m", "probe"],
}
PLACES = ("clone", "parent", "elsewhere")
FIND = "import importlib.util\nprint(importlib.util.find_spec('torch_openreg').origin)\n"
USE = "import torch\nassert torch.ones(2, device='openreg').sum().item() == 2\n"
IMPORT = "import torch\nprint(torch.ones(2).sum().item(), hasattr(torch, 'openreg'))\n"


@unittest.skipIf(compiler() is None, "needs a C++ compiler, without which setup.py ends")
class TestInstallation(TestCase):
    """An environment for each kind of installation, of a clone that is named as the package."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = Path(tempfile.mkdtemp()).resolve()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.pythons = {}
        for kind in ("editable", "wheel"):
            environment = cls.folder / kind / "environment"
            clone = cls.clone(kind)
            cls.pythons[kind] = make_environment(environment)
            make_tree(clone, has_libraries=kind == "editable")
            (cls.folder / kind / "elsewhere").mkdir()
            install(kind, clone, environment)
        package = site_packages(cls.folder / "wheel" / "environment") / "torch_openreg"
        ours = Path(torch_openreg.__file__).parent
        shutil.copytree(ours / "lib", package / "lib", dirs_exist_ok=True)
        for library in ours.glob("*.so"):
            shutil.copy(library, package)

    @classmethod
    def clone(cls, kind):
        return cls.folder / kind / "parent" / "torch_openreg"

    def run_at(self, kind, place, way, program):
        clone = self.clone(kind)
        folder = {"clone": clone, "parent": clone.parent, "elsewhere": clone.parents[1] / place}
        (folder[place] / "probe.py").write_text(program)
        return run([str(self.pythons[kind]), *WAYS[way](folder[place])], folder[place])

    @parametrize("place", PLACES)
    @parametrize("way", list(WAYS))
    def test_editable_installation_is_found(self, place, way):
        result = self.run_at("editable", place, way, FIND)
        expected = self.clone("editable") / "torch_openreg" / "__init__.py"
        self.assertEqual(result.stdout.strip(), str(expected))

    @parametrize("place", PLACES)
    @parametrize("way", list(WAYS))
    def test_installation_is_found_but_in_the_clone(self, place, way):
        result = self.run_at("wheel", place, way, FIND)
        installed = site_packages(self.folder / "wheel" / "environment")
        root = self.clone("wheel") if place == "clone" else installed
        self.assertEqual(result.stdout.strip(), str(root / "torch_openreg" / "__init__.py"))

    @parametrize("kind", ["editable", "wheel"])
    def test_device_is_there_beside_the_clone(self, kind):
        self.assertEqual(self.run_at(kind, "parent", "script", USE).stderr, "")

    def test_source_tree_in_place_of_the_installation_says_what_to_do(self):
        result = self.run_at("wheel", "clone", "c", IMPORT)
        self.assertEqual(result.stdout.split(), ["2.0", "False"])
        self.assertIn("This is the source tree and not the installed package", result.stderr)
        self.assertIn("pip install -e", result.stderr)

    def test_clone_that_was_moved_is_a_warning_that_says_what_to_do(self):
        clone = self.clone("editable")
        moved = clone.with_name("moved")
        clone.rename(moved)
        self.addCleanup(moved.rename, clone)
        program = self.folder / "program.py"
        program.write_text(IMPORT)
        result = run([str(self.pythons["editable"]), str(program)], self.folder)
        self.assertEqual(result.stdout.split(), ["2.0", "False"])
        self.assertIn(f"installed from {clone} with pip install -e", result.stderr)
        self.assertIn("pip uninstall torch_openreg", result.stderr)
        self.assertEqual(result.stderr.count("Warning"), 1, result.stderr)

    @unittest.skipUnless(importlib.util.find_spec("triton"), "Triton is not installed")
    def test_triton_can_be_imported_when_the_clone_was_moved(self):
        clone = self.clone("editable")
        moved = clone.with_name("moved")
        clone.rename(moved)
        self.addCleanup(moved.rename, clone)
        program = self.folder / "program.py"
        program.write_text("import triton\nprint(sorted(triton.backends.backends))\n")
        result = run([str(self.pythons["editable"]), str(program)], self.folder)
        self.assertIn("openreg", result.stdout)

    @pytest.mark.slow
    def test_clone_with_an_error_is_a_warning(self):
        broken = self.clone("editable") / "torch_openreg" / "_version.py"
        text = broken.read_text()
        self.addCleanup(broken.write_text, text)
        broken.write_text("=")
        result = self.run_at("editable", "elsewhere", "script", IMPORT)
        self.assertEqual(result.stdout.split(), ["2.0", "False"])
        self.assertIn("'openreg' is not available: SyntaxError", result.stderr)

    def test_list_of_installed_files_has_the_module_of_the_entry_point(self):
        packages = site_packages(self.folder / "editable" / "environment")
        record = next(packages.glob("torch_openreg-*.dist-info/RECORD")).read_text()
        self.assertRegex(record, r"(?m)^torch_openreg_autoload\.py,sha256=[\w-]{43},\d+$")
        self.assertTrue((packages / "torch_openreg_autoload.py").is_file())
        for name in ("__init__", "compiler", "driver"):
            self.assertIn(f"\ntriton_openreg/{name}.py,sha256=", record)
            self.assertTrue((packages / "triton_openreg" / f"{name}.py").is_file())

    def test_no_other_folder_of_the_tree_is_a_package(self):
        # An editable installation puts the tree's root into the path. A folder with an __init__.py
        # would hide a user's folder of that name that has none.
        packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
        self.assertEqual(packages, ["torch_openreg", "triton_openreg"])


@unittest.skipIf(compiler() is None, "needs a C++ compiler")
@unittest.skipUnless(importlib.util.find_spec("ninja"), "needs ninja, without which setup.py ends")
class TestCommands(TestCase):
    def test_compiler_gets_the_same_commands_in_each_environment(self):
        # Or ninja would compile everything again for a second environment, and then for the first.
        folder = Path(tempfile.mkdtemp()).resolve()
        self.addCleanup(shutil.rmtree, folder)
        tree = folder / "tree"
        make_tree(tree, has_libraries=False)
        outputs = []
        for name in ("first", "second"):
            python = make_environment(folder / name)
            output = run([str(python), "-c", COMMANDS], tree).stdout
            self.assertNotIn(str(folder / name), output)
            outputs.append(json.loads(output.splitlines()[-1]))
        first, second = outputs
        self.assertEqual(first, second)
        ninja_files = [text for text in first if isinstance(text, str)]
        self.assertEqual(len(ninja_files), 3)
        for text in ninja_files:
            self.assertIn("rule compile", text)
        self.assertIn(f"{tree}/build/torch-{torch.__version__}/include", ninja_files[-1])


instantiate_parametrized_tests(TestInstallation)

if __name__ == "__main__":
    run_tests()
