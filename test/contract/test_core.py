"""The core stands alone: it needs nothing of the backend's other parts and names no extra.

So do launches of kernels that nothing of the CPU surrounds.
"""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch
from source_tree import (
    BACKEND,
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


class LinkingTestCase(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def link(self, *parts, extra="", headers=INCLUDE.parent, libraries=("c10",)):
        """Links parts of the backend, and a line of C++, with the runtime and libraries of torch.

        Args:
            parts: Folders of csrc.
            extra: The line.
            headers: The folder that has the public ones.
            libraries: The names of torch's.
        """
        sources = [path for part in parts for path in sorted((BACKEND / part).glob("*.cpp"))]
        self.assertGreater(len(sources), 8)
        unit = self.folder / "unit.cpp"
        unit.write_text("".join(f'#include "{path}"\n' for path in sources) + extra)
        folders = [ROOT, headers, RUNTIME / "include"]
        torch_libraries = Path(torch.__file__).parent / "lib"
        return subprocess.run(
            [COMPILER, "-std=c++20", "-O0", "-fPIC", "-shared", "-Wl,--no-undefined"]
            + ["-DAT_PER_OPERATOR_HEADERS"]
            + [f"-I{folder}" for folder in folders]
            + [f"-isystem{folder}" for folder in include_paths()]
            + [str(unit), str(LIBRARIES["libopenreg.so"]), f"-L{torch_libraries}"]
            + [f"-l{library}" for library in libraries]
            + ["-o", str(self.folder / "unit.so")],
            capture_output=True,
            text=True,
        )


@unittest.skipIf(COMPILER is None, "needs a C++ compiler")
class TestCore(LinkingTestCase):
    def test_core_links_with_the_runtime_and_c10_alone(self):
        linked = self.link("core")
        self.assertEqual(linked.returncode, 0, linked.stderr)

    def test_a_call_of_another_part_is_an_undefined_reference(self):
        linked = self.link(
            "core", extra="void callSanitizer();\nvoid call() { callSanitizer(); }\n"
        )
        self.assertNotEqual(linked.returncode, 0)
        self.assertIn("undefined reference to `callSanitizer()'", linked.stderr)


@unittest.skipIf(COMPILER is None, "needs a C++ compiler")
class TestLaunch(LinkingTestCase):
    def link_launches(self, wrapper):
        """Links launches with another wrapper of kernels, without the header of the CPU's."""
        headers = self.folder / "include"
        shutil.copytree(INCLUDE, headers / INCLUDE.name)
        folder = headers / INCLUDE.name / "aten"
        (folder / "KernelEnvironment.h").unlink()
        text = (folder / "KernelWrapper.h").read_text()
        include = '#include "torch_openreg/aten/KernelEnvironment.h"\n'
        line = "using KernelWrapper = KernelEnvironment;\n"
        self.assertEqual((text.count(include), text.count(line)), (1, 1))
        text = text.replace(include, "").replace(line, f"using KernelWrapper = {wrapper};\n")
        (folder / "KernelWrapper.h").write_text(text)
        return self.link(
            *("core", "memory", "random", "aten/launch"),
            headers=headers,
            libraries=("c10", "torch_cpu"),
        )

    def test_launches_of_plain_kernels_need_nothing_of_the_cpu_s(self):
        linked = self.link_launches("PlainKernel")
        self.assertEqual(linked.returncode, 0, linked.stderr)

    def test_launches_need_what_the_one_line_names(self):
        linked = self.link_launches("KernelEnvironment")
        self.assertNotEqual(linked.returncode, 0)
        self.assertIn("KernelEnvironment", linked.stderr)


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
