"""The list of the core's files is what a build without extras compiles and installs."""

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from common import OpenRegTestCase, run_tests
from installation import make_tree, run
from source_tree import ROOT, compiler

sys.path.insert(0, str(ROOT / "tools"))
from core_files import PLACE, core_files, table

# Prints the sources, packages and headers of a build without extras, of which nothing is built.
BUILD = """
import json
import os
import sys
from pathlib import Path

import setuptools

os.environ["OPENREG_EXTRAS"] = "none"
built = {}
setuptools.setup = lambda **options: built.update(options)
sys.argv[1:] = []
program = {"__file__": "setup.py"}
exec(compile(Path("setup.py").read_text(), "setup.py", "exec"), program)
Path("package", "lib").mkdir(parents=True)
program["complete_package"](Path("package"))
distribution = setuptools.Distribution({"script_name": "setup.py"})
distribution.parse_config_files()
package = built["cmdclass"]["build_py"](distribution)
package.ensure_finalized()
stale = Path(package.build_lib, "torch_openreg", "extras", "graph", "graphs.py")
stale.parent.mkdir(parents=True)
stale.write_text("")
package.run()
print(json.dumps({
    "sources": [file for one in built["ext_modules"] for file in one.sources],
    "packages": package.packages,
    "installs_what_was_left": stale.exists(),
    "modules": [str(path) for path in Path(package.build_lib).rglob("*.py")],
    "headers": [str(path) for path in Path("package", "include").rglob("*.h")],
}))
"""


@unittest.skipIf(compiler() is None, "needs a C++ compiler, without which setup.py ends")
class TestBuildWithoutExtras(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = Path(tempfile.mkdtemp()).resolve()
        cls.addClassCleanup(shutil.rmtree, folder)
        make_tree(folder / "tree", has_libraries=False)
        shutil.copytree(ROOT / "torch-stubs", folder / "tree" / "torch-stubs")
        output = run([sys.executable, "-c", BUILD], folder / "tree").stdout
        cls.build = json.loads(output.splitlines()[-1])
        cls.files = core_files()

    def test_it_compiles_the_sources_of_the_list(self):
        self.assertEqual(
            sorted(self.build["sources"]), [file for file in self.files if file.endswith(".cpp")]
        )

    def test_it_installs_the_packages_of_the_list(self):
        python = [Path(file) for file in self.files if file.endswith((".py", ".pyi"))]
        folders = {file.parent.as_posix() for file in python if file.parts[0] != "csrc"} - {"."}
        packages = {name.replace(".", "/") for name in self.build["packages"]}
        of_modules = {one for one in packages if any((ROOT / one).glob("*.py*"))}
        self.assertEqual(of_modules - {"torch-stubs"}, folders)  # has a file of another kind

    def test_it_installs_nothing_that_an_earlier_build_has_left(self):
        self.assertFalse(self.build["installs_what_was_left"])
        self.assertIn("build/lib/torch_openreg/extras/_absent.py", self.build["modules"])

    def test_it_installs_the_public_headers_of_the_list(self):
        public = ("include/", "third_party/openreg_runtime/include/")
        headers = {
            file.removeprefix(place)
            for place in public
            for file in self.files
            if file.startswith(place)
        }
        installed = {
            Path(name).relative_to("package/include").as_posix() for name in self.build["headers"]
        }
        self.assertEqual(installed, headers)


class TestPage(OpenRegTestCase):
    def test_table_of_the_page_is_that_of_the_files(self):
        page = PLACE.page.read_text(encoding="utf-8")
        current = PLACE.updated(page, table(core_files()))
        self.assertEqual(page, current, "python tools/core_files.py --page")
        self.assertIn("| `csrc/core/` |", page)

    def test_list_has_the_core_and_nothing_of_an_extra(self):
        files = core_files()
        self.assertIn("csrc/core/GuardImpl.cpp", files)
        self.assertIn("torch_openreg/extras/__init__.py", files)
        self.assertEqual([file for file in files if "/extras/graph" in file], [])

    def test_list_has_no_source_that_is_about_cuda(self):
        found = [Path(file) for file in core_files() if "cuda" in Path(file).stem.lower()]
        # By this name programs start the extra, or are told that it is missing.
        self.assertEqual(found, [Path("torch_openreg/cuda.py")])


if __name__ == "__main__":
    run_tests()
