"""The core stands alone: it needs nothing of the backend's other parts and names no extra."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch
from source_tree import (
    INCLUDE,
    LIBRARIES,
    ROOT,
    RUNTIME,
    backend_files,
    code_of,
    compiler,
    relative,
)
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils.cpp_extension import include_paths

COMPILER = compiler()

# Words of extras that observe. Outside of these folders no code depends on them.
_SANITIZER = re.compile(r"isSanitizerOn|csrc/extras/sanitizer/|GPUTrace")
_OF_THE_OBSERVERS = {
    "csrc/extras/sanitizer/",
    "csrc/extras/profiler/GpuTrace",
}


@unittest.skipIf(COMPILER is None, "needs a C++ compiler")
class TestCore(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def link(self, extra=""):
        """Links the core, and a line of C++, with the runtime and c10 alone."""
        sources = sorted((ROOT / "csrc" / "core").glob("*.cpp"))
        self.assertGreater(len(sources), 8)
        unit = self.folder / "core.cpp"
        unit.write_text("".join(f'#include "{path}"\n' for path in sources) + extra)
        folders = [ROOT, INCLUDE.parent, RUNTIME / "include"]
        torch_libraries = Path(torch.__file__).parent / "lib"
        return subprocess.run(
            [COMPILER, "-std=c++20", "-O0", "-fPIC", "-shared", "-Wl,--no-undefined"]
            + [f"-I{folder}" for folder in folders]
            + [f"-isystem{folder}" for folder in include_paths()]
            + [str(unit), str(LIBRARIES["libopenreg.so"]), f"-L{torch_libraries}", "-lc10"]
            + ["-o", str(self.folder / "core.so")],
            capture_output=True,
            text=True,
        )

    def test_core_links_with_the_runtime_and_c10_alone(self):
        linked = self.link()
        self.assertEqual(linked.returncode, 0, linked.stderr)

    def test_a_call_of_another_part_is_an_undefined_reference(self):
        linked = self.link("void callSanitizer();\nvoid call() { callSanitizer(); }\n")
        self.assertNotEqual(linked.returncode, 0)
        self.assertIn("undefined reference to `callSanitizer()'", linked.stderr)


class TestObservers(TestCase):
    def test_no_code_outside_of_the_observers_depends_on_them(self):
        files = [
            path
            for path in backend_files()
            if not any(relative(path).startswith(part) for part in _OF_THE_OBSERVERS)
        ]
        self.assertGreater(len(files), 200)
        self.assertEqual([relative(p) for p in files if _SANITIZER.search(code_of(p))], [])


if __name__ == "__main__":
    run_tests()
