"""Import: ``import torch`` brings the device, in any order, and survives a broken library."""

import importlib.metadata
import os
import re
import shutil
import sysconfig
import tempfile
import unittest

import pytest
import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
    subtest,
    torch_openreg,
)

pytestmark = pytest.mark.sample(0.037)

PACKAGE = os.path.dirname(torch_openreg.__file__)
EXTENSION = "_C" + sysconfig.get_config_var("EXT_SUFFIX")
WORKS = "assert (torch.ones(2, device='openreg') + 1).tolist() == [2.0, 2.0]\n"
NO_AUTOLOAD = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

has_entry_point = any(
    point.value == "torch_openreg_autoload:autoload"
    for point in importlib.metadata.entry_points(group="torch.backends")
)
requires_entry_point = unittest.skipUnless(has_entry_point, "needs an installed torch_openreg")


class TestImport(OpenRegTestCase):
    @requires_entry_point
    @parametrize(
        "imports",
        [
            subtest("import torch", name="torch"),
            subtest("import torch, torch_openreg", name="torch_then_torch_openreg"),
            subtest("import torch_openreg, torch", name="torch_openreg_then_torch"),
            subtest("import torch_openreg.testing, torch", name="submodule_then_torch"),
            subtest("from torch_openreg import openreg; import torch", name="from_import"),
            subtest("import torch.nn.functional, torch_openreg.openreg", name="submodules"),
        ],
    )
    def test_device_is_there_with_autoload_after(self, imports):
        result = run_program(imports + "\n" + WORKS)
        self.assertEqual(result.stderr, "")

    @parametrize(
        "imports",
        [
            subtest("import torch, torch_openreg", name="torch_then_torch_openreg"),
            subtest("import torch_openreg, torch", name="torch_openreg_then_torch"),
            subtest("import torch_openreg.testing, torch", name="submodule_then_torch"),
        ],
    )
    def test_device_is_there_without_autoload_after(self, imports):
        result = run_program(imports + "\n" + WORKS, NO_AUTOLOAD)
        self.assertEqual(result.stderr, "")

    def test_device_is_absent_without_autoload_and_import(self):
        run_program("import torch; assert not hasattr(torch, 'openreg')", NO_AUTOLOAD)

    @parametrize("settings", [subtest({}, name="autoload"), subtest(NO_AUTOLOAD, name="explicit")])
    def test_import_can_be_repeated(self, settings):
        run_program(
            """
            import importlib, sys
            import torch_openreg, torch
            module = torch.openreg
            import torch_openreg
            importlib.reload(torch_openreg)
            del sys.modules["torch_openreg"]
            import torch_openreg
            torch_openreg._autoload()
            assert torch.openreg is module is torch_openreg.openreg
            """
            + WORKS,
            settings,
        )

    def test_import_starts_no_thread_and_creates_no_device(self):
        result = run_program(
            """
            import os, torch
            before = len(os.listdir("/proc/self/task"))
            import torch_openreg
            from torch_openreg import _C
            torch.openreg.is_available(), torch.openreg.device_count(), torch.manual_seed(0)
            print(len(os.listdir("/proc/self/task")) - before)
            print(any(_C._is_device_active(i) for i in range(torch.openreg.device_count())))
            """,
            NO_AUTOLOAD,
        )
        self.assertEqual(result.stdout.split(), ["0", "False"])

    def test_import_maps_no_device_memory(self):
        result = run_program(
            """
            import torch, torch_openreg
            print("memfd" in open("/proc/self/maps").read())
            torch.ones(1, device="openreg")
            print("memfd" in open("/proc/self/maps").read())
            """,
            NO_AUTOLOAD,
        )
        self.assertEqual(result.stdout.split(), ["False", "True"])

    def test_import_loads_no_further_package(self):
        result = run_program(
            """
            import sys, torch
            before = set(sys.modules)
            import torch_openreg
            new = {name.split(".")[0] for name in set(sys.modules) - before}
            print(sorted(new), [n for n in sys.modules if n.startswith("torch.") and
                  n not in before and not n.startswith("torch.openreg")])
            """,
            NO_AUTOLOAD,
        )
        # The last one is this package's, under the name that programs use.
        self.assertEqual(
            result.stdout.strip(), "['torch', 'torch_openreg'] ['torch.backends.openreg']"
        )

    def test_version_is_that_of_the_distribution(self):
        if not has_entry_point:
            self.skipTest("needs an installed torch_openreg")
        self.assertEqual(torch_openreg.__version__, importlib.metadata.version("torch_openreg"))

    def test_another_backend_in_the_same_place_is_told(self):
        result = run_program(
            """
            import torch
            torch.utils.rename_privateuse1_backend("other")
            try:
                import torch_openreg
            except ImportError as error:
                print(error)
            """,
            NO_AUTOLOAD,
        )
        self.assertIn("'other' is already registered", result.stdout)

    def test_text_about_another_backend_says_what_to_set_for_either(self):
        program = """
            import torch
            torch.utils.rename_privateuse1_backend("other")
            try:
                import torch_openreg
            except ImportError as error:
                print(error)
            print(torch.device("other"))
            """
        result = run_program(program, NO_AUTOLOAD)
        self.assertIn("To use 'other', set OPENREG_DEVICE_TYPE=none, or uninstall", result.stdout)
        result = run_program(program, NO_AUTOLOAD | {"OPENREG_DEVICE_TYPE": "none"})
        self.assertEqual((result.stdout, result.stderr), ("other\n", ""))


# A thread imports torch. When it has the lock of that import, another one begins to import the
# package; the first continues when the other waits for torch.
TWO_THREADS = """
import builtins, sys, threading

failures = []

def work(name):
    try:
        __import__(name)
        import torch
        assert (torch.ones(2, device='openreg') + 1).tolist() == [2.0, 2.0]
    except BaseException as error:
        failures.append((name, repr(error)))

other = threading.Thread(target=work, args=(SECOND,))
plain_import = builtins.__import__

def is_waiting():
    frame = sys._current_frames().get(other.ident)
    code = None if frame is None else frame.f_code
    return code is not None and "_bootstrap" in code.co_filename and code.co_name == "acquire"

def import_(name, globals=None, *rest):
    if globals is not None and globals["__name__"] == "torch" and other.ident is None:
        other.start()
        while not is_waiting():
            pass
    return plain_import(name, globals, *rest)

builtins.__import__ = import_
work("torch")
other.join()
print(failures)
"""

MANY_THREADS = """
import threading

barrier = threading.Barrier(16)
failures = []

def work(name):
    barrier.wait()
    try:
        __import__(name)
        import torch
        assert (torch.ones(2, device='openreg') + 1).tolist() == [2.0, 2.0]
    except BaseException as error:
        failures.append((name, repr(error)))

names = ["torch", "torch_openreg"] * 8
threads = [threading.Thread(target=work, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failures)
"""


class TestThreads(OpenRegTestCase):
    @requires_entry_point
    @parametrize("second", ["torch_openreg", "torch_openreg.testing"])
    def test_thread_imports_the_package_while_another_imports_torch(self, second):
        result = run_program(f"SECOND = {second!r}\n{TWO_THREADS}")
        self.assertEqual((result.stdout, result.stderr), ("[]\n", ""))

    @requires_entry_point
    def test_thread_imports_the_device_module_itself_while_another_imports_torch(self):
        # The thread that imports torch cannot register the device: the other one does, afterwards.
        code = TWO_THREADS.replace('work("torch")\n', "import torch\n") + WORKS
        result = run_program(f"SECOND = 'torch_openreg.openreg'\n{code}")
        self.assertEqual((result.stdout, result.stderr), ("[]\n", ""))

    @requires_entry_point
    def test_thread_that_imports_the_package_raises_its_failure(self):
        code = TWO_THREADS + "print('torch' in sys.modules, 'torch_openreg' in sys.modules)"
        result = run_program(f"SECOND = 'torch_openreg'\n{code}", {"OPENREG_DEVICE_TYPE": "gpu"})
        self.assertRegex(result.stdout, r"'torch_openreg', 'ImportError.*OPENREG_DEVICE_TYPE is")
        self.assertTrue(result.stdout.endswith("\nTrue False\n"), result.stdout)

    @requires_entry_point
    def test_device_is_there_when_the_import_of_torch_within_ours_ends(self):
        # Then a thread that has waited for that import continues.
        result = run_program(
            """
            import builtins, sys

            import_module = builtins.__import__

            def record(name, globals=None, *rest):
                module = import_module(name, globals, *rest)
                if name == "torch" and sys._getframe(1).f_code.co_qualname == "load":
                    print((module.ones(2, device="openreg") + 1).tolist(), module.openreg.__name__)
                return module

            builtins.__import__ = record
            import torch_openreg
            """
        )
        self.assertEqual(result.stdout, "[2.0, 2.0] torch_openreg.openreg\n", result.stderr)

    @requires_entry_point
    @parametrize("attempt", range(3))
    def test_many_threads_import_torch_and_the_package_at_the_same_time(self, attempt):
        result = run_program(MANY_THREADS)
        self.assertEqual((result.stdout, result.stderr), ("[]\n", ""))


class TestBrokenInstallation(OpenRegTestCase):
    """Runs programs against a copy of the package whose native library is missing or broken."""

    def setUp(self):
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.site = directory.name
        self.package = os.path.join(self.site, "torch_openreg")
        shutil.copytree(
            PACKAGE,
            self.package,
            ignore=shutil.ignore_patterns("*.so", "__pycache__", "demo"),
        )
        info = os.path.join(self.site, "torch_openreg-0.0.dist-info")
        os.mkdir(info)
        with open(os.path.join(info, "METADATA"), "w") as file:
            file.write("Metadata-Version: 2.1\nName: torch_openreg\nVersion: 0.0\n")
        with open(os.path.join(info, "entry_points.txt"), "w") as file:
            file.write("[torch.backends]\nopenreg = torch_openreg_autoload:autoload\n")
        shutil.copy(os.path.join(os.path.dirname(PACKAGE), "torch_openreg_autoload.py"), self.site)

    def write(self, name, contents):
        with open(os.path.join(self.package, name), "w") as file:
            file.write(contents)

    def run_here(self, code, **settings):
        return run_program(code, {"PYTHONPATH": self.site, **settings})

    def assert_reported(self, reason):
        """Checks the warning of ``import torch`` and the package's ImportError."""
        result = self.run_here(
            """
            import torch
            print(torch.ones(2).sum().item(), hasattr(torch, "openreg"))
            try:
                import torch_openreg
            except ImportError as error:
                print(error)
            """
        )
        first, second = result.stdout.splitlines()
        self.assertEqual(first, "2.0 False")
        self.assertRegex(second, reason)
        self.assertEqual(result.stderr.count("Warning"), 1, result.stderr)
        self.assertRegex(result.stderr, "'openreg' is not available: .*" + reason)

        result = self.run_here(
            """
            import importlib
            for name in ("torch_openreg", "torch_openreg", "torch_openreg.testing"):
                try:
                    importlib.import_module(name)
                except ImportError as error:
                    print(error)
            import torch
            print(torch.ones(2).sum().item())
            """
        )
        *reasons, last = result.stdout.splitlines()
        self.assertEqual(len(reasons), 3)
        for text in reasons:
            self.assertRegex(text, reason)
        self.assertEqual(last, "2.0")
        self.assertEqual(result.stderr, "")

    def test_missing_library_is_reported(self):
        self.assert_reported("native library torch_openreg._C is missing from .*Install")

    def test_source_tree_without_the_library_is_reported_as_such(self):
        with open(os.path.join(self.site, "setup.py"), "w"):
            pass
        self.assert_reported("This is the source tree and not the installed package")

    def test_file_that_is_no_library_is_reported(self):
        self.write(EXTENSION, "not a library")
        self.assert_reported("native library cannot be loaded: .*" + EXTENSION)

    def test_library_that_lacks_another_one_is_reported(self):
        # The extension without lib/libtorch_openreg.so next to it.
        shutil.copy(os.path.join(PACKAGE, EXTENSION), self.package)
        self.assert_reported(r"native library cannot be loaded: .*lib\w+\.so")

    def test_library_that_fails_while_it_loads_is_reported(self):
        self.write("_C.py", "raise RuntimeError('no luck')")
        self.assert_reported("native library cannot be loaded: no luck")

    def test_build_for_another_torch_is_reported_with_what_to_type(self):
        self.write("lib/TORCH_VERSION", "1.0.0+cpu\n")
        self.assert_reported(
            r"torch_openreg \S+ was built for torch 1\.0, but torch \S+ is installed\. .*: "
            rf"pip install --no-deps .* torch_openreg=={torch_openreg.__version__}"
        )

    def test_build_for_another_torch_is_built_from_where_it_was(self):
        self.write("lib/TORCH_VERSION", "1.0.0")
        info = os.path.join(self.site, "torch_openreg-0.0.dist-info")
        with open(os.path.join(info, "direct_url.json"), "w") as file:
            file.write('{"url": "file:///sources/torch_openreg", "dir_info": {}}')
        self.assert_reported("pip install --no-deps .* file:///sources/torch_openreg")
        with open(os.path.join(self.site, "setup.py"), "w"):
            pass
        self.assert_reported(f"pip install --no-deps .* -e {self.site}")

    def test_torch_that_the_sources_do_not_serve_is_reported(self):
        self.write("lib/TORCH_VERSION", "1.0.0")
        with open(os.path.join(PACKAGE, "_version.py")) as file:
            text = re.sub("TORCH_RELEASES = .*", 'TORCH_RELEASES = ("1.0", "1.1")', file.read())
        self.write("_version.py", text)
        self.assert_reported(
            r"supports torch 1\.0 and 1\.1, but torch \S+ is installed\. .*: "
            r"pip install 'torch==1\.1\.\*'"
        )

    def test_build_for_another_patch_of_the_release_loads(self):
        release = ".".join(torch.__version__.split(".")[:2])
        self.write("lib/TORCH_VERSION", f"{release}.99+other")
        # The next step fails: the library is not there.
        self.assert_reported("native library torch_openreg._C is missing")

    def test_programs_without_autoload_hear_nothing(self):
        result = self.run_here("import torch", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.assertEqual(result.stderr, "")


instantiate_parametrized_tests(TestImport)
instantiate_parametrized_tests(TestThreads)

if __name__ == "__main__":
    run_tests()
