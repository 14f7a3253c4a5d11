"""Properties that the build detects: torch's kernels, programs, macros; its file for editors."""

import json
import shutil
import subprocess
import unittest
from pathlib import Path

import pytest
from source_tree import (
    ROOT,
    backend_files,
    compiler,
    relative,
    runtime_sources,
)
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch.utils.cpp_extension import include_paths

from torch_openreg import _C, cpp_extension

pytestmark = pytest.mark.sample(0.067)

COMPILER = compiler()
MISSING_EXTRAS = tuple(f"csrc/extras/{one}/" for one in _C._missing_extras().split(", ") if one)


@unittest.skipIf(COMPILER is None, "needs a C++ compiler")
class TestKernelArguments(TestCase):
    """A kernel's argument that would dangle on the worker does not compile."""

    @parametrize(
        "kind",
        [
            subtest("float*", name="pointer"),
            subtest("const char*", name="text"),
            subtest("std::reference_wrapper<int>", name="reference"),
            subtest("c10::ArrayRef<std::string_view>", name="list_of_views"),
            subtest("std::optional<float*>", name="optional_pointer"),
            subtest("std::vector<std::string_view>", name="vector_of_views"),
        ],
    )
    def test_dangling_argument_is_a_compile_error(self, kind):
        folders = [*cpp_extension.include_paths(), *include_paths()]
        result = subprocess.run(
            [COMPILER, "-x", "c++", "-std=c++20", "-fsyntax-only", "-DAT_PER_OPERATOR_HEADERS"]
            + [f"-isystem{folder}" for folder in folders]
            + ["-"],
            input=f"""
                #include <torch_openreg/aten/KernelArguments.h>
                #include <functional>
                void kernel({kind}) {{}}
                void call(c10::Device device, {kind} argument) {{
                  at::openreg::enqueue<"test::kernel">(device, &kernel, argument);
                }}
            """,
            capture_output=True,
            text=True,
        )
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("a kernel's argument: expected", result.stderr)


CLANG = next(filter(None, map(shutil.which, ("clang++", "clang++-19", "clang++-14"))), None)


@unittest.skipIf(CLANG is None, "needs clang++, whose check of locks this is")
class TestLocks(TestCase):
    """An assumption of tools/lint.py thread-safety: clang reports errors for both headers."""

    @parametrize(
        "header, namespace",
        [
            subtest(("third_party/openreg_runtime/src/base/mutex.h", "openreg"), name="runtime"),
            subtest(("csrc/core/Mutex.h", "c10::openreg"), name="backend"),
        ],
    )
    @parametrize("has_lock", [True, False])
    def test_guarded_variable_needs_its_lock(self, header, namespace, has_lock):
        result = subprocess.run(
            [CLANG, "-x", "c++", "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror", "-"],
            input=f"""
                #include "{header}"
                struct Counter {{
                  {namespace}::Mutex mutex;
                  int value OPENREG_GUARDED_BY(mutex) = 0;
                }};
                void increase(Counter& counter) {{
                  {f"const {namespace}::Lock lock(counter.mutex);" if has_lock else ""}
                  ++counter.value;
                }}
            """,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        self.assertEqual(result.returncode == 0, has_lock, msg=lambda _: result.stderr)
        self.assertEqual("requires holding mutex" in result.stderr, not has_lock)

    @parametrize("lock", ["ExclusiveLock", "SharedLock"])
    def test_shared_mutex_is_held_exclusively_to_write_what_it_guards(self, lock):
        result = subprocess.run(
            [CLANG, "-x", "c++", "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror", "-"],
            input=f"""
                #include "csrc/core/Mutex.h"
                struct Counter {{
                  c10::openreg::SharedMutex mutex;
                  int value OPENREG_GUARDED_BY(mutex) = 0;
                }};
                int increase(Counter& counter) {{
                  const c10::openreg::{lock} lock(counter.mutex);
                  return ++counter.value;
                }}
            """,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        writes = lock == "ExclusiveLock"
        self.assertEqual(result.returncode == 0, writes, msg=lambda _: result.stderr)
        self.assertEqual("exclusively" in result.stderr, not writes)


def editor_commands() -> list[dict]:
    return json.loads((ROOT / "build" / "compile_commands.json").read_text())


class TestEditors(TestCase):
    """The file that the build writes for clangd and the editors that use it."""

    def test_every_source_has_a_command_of_its_own(self):
        files = [relative(Path(entry["file"])) for entry in editor_commands()]
        self.assertEqual(len(files), len(set(files)))
        sources = {
            relative(path)
            for path in [*runtime_sources(), *backend_files()]
            if path.suffix == ".cpp" and not relative(path).startswith(MISSING_EXTRAS)
        }
        self.assertEqual(sources - set(files), set())

    def test_command_is_about_its_source_and_has_nothing_for_gcc_alone(self):
        for entry in editor_commands():
            arguments = entry["arguments"]
            self.assertEqual(arguments.count(entry["file"]), 1)
            for option in ("-include", "-MF", "-Werror"):
                self.assertNotIn(option, arguments)


instantiate_parametrized_tests(TestLocks)
instantiate_parametrized_tests(TestKernelArguments)

if __name__ == "__main__":
    run_tests()
