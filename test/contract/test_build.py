"""What the build decides by looking: torch's kernels, the programs it calls, its macros."""

import re
import shutil
import subprocess
import sys
import unittest

from source_tree import (
    LIBRARIES,
    ROOT,
    backend_files,
    code_of,
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

import torch_openreg
from torch_openreg import cpp_extension

COMPILER = compiler()

# Runs setup.py's functions without building: its last statement is the call of setup().
SETUP = """
import sys
text = open("setup.py").read().split("\\nsetup(")[0]
scope = {"__file__": sys.argv[1], "__name__": "setup"}
exec(compile(text, "setup.py", "exec"), scope)
print("result:", scope["kernel_stub_macros"](sys.stdin.read()))
"""

CHOOSER = "_ZN2at6native16DispatchStubImpl12get_call_ptrEN3c1010DeviceTypeEPv"
STUBS = (
    "LayerNormKernel",
    "LayerNormBackwardKernel",
    "flash_attention_kernel",
    "flash_attention_backward_kernel",
)


def symbols(*capabilities: str, pointers: int) -> str:
    """Returns the symbols of a torch whose kernels were built for these processors."""
    stubs = [
        f"_ZN2at6native12DispatchStubIPFvlENS0_9{stub}_DECLARE_DISPATCH_typeEE7{capability}E"
        for stub in STUBS
        for capability in capabilities
    ]
    return "\n".join([*stubs, CHOOSER + "S4_" * (pointers - 1)])


class TestKernelStubs(TestCase):
    def macros(self, exported: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", SETUP, str(ROOT / "setup.py")],
            input=exported,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        self.assertEqual(result.returncode, 0, msg=lambda _: result.stderr)
        return result.stdout

    @parametrize(
        "capabilities, expected",
        [
            subtest((["DEFAULT"], []), name="none"),
            subtest(
                (["DEFAULT", "AVX2", "AVX512"], ["HAVE_AVX2", "HAVE_AVX512"]),
                name="x86",
            ),
            subtest((["DEFAULT", "SVE128", "SVE256"], ["HAVE_SVE"]), name="arm"),
        ],
    )
    def test_macros_are_those_of_the_installed_torch(self, capabilities, expected):
        output = self.macros(symbols(*capabilities, pointers=len(capabilities)))
        names = [f"{name}_CPU_DEFINITION" for name in expected]
        self.assertIn(f"result: {['OPENREG_HAS_KERNEL_STUBS', *names]}", output)

    @parametrize(
        "exported",
        [
            subtest("", name="no_stub"),
            subtest(symbols("DEFAULT", "AVX1024", pointers=2), name="unknown_processor"),
            subtest(symbols("DEFAULT", "AVX2", pointers=3), name="another_chooser"),
            subtest(
                symbols("DEFAULT", pointers=1).replace("flash_attention_kernel", "renamed"),
                name="renamed_kernel",
            ),
        ],
    )
    def test_build_says_when_stubs_are_unknown(self, exported):
        output = self.macros(exported)
        self.assertIn("building without", output)
        self.assertIn("result: []", output)

    def test_results_are_written_without_a_copy(self):
        self.assertEqual(
            sorted(torch_openreg._C._result_kernels()),
            [
                "aten::_scaled_dot_product_flash_attention_for_cpu",
                "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                "aten::native_layer_norm",
                "aten::native_layer_norm_backward",
            ],
        )

    def test_backend_imports_the_stubs_of_this_torch(self):
        listing = subprocess.run(
            ["nm", "-D", "--undefined-only", str(LIBRARIES["libtorch_openreg.so"])],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        imported = {stub for stub in STUBS if f"{stub}_DECLARE_DISPATCH_type" in listing}
        self.assertEqual(imported, set(STUBS))

    def test_no_file_has_processors_of_its_own(self):
        for file in backend_files(suffixes=(".h", ".cpp")):
            defined = re.findall(r"^\s*#\s*define (HAVE_\w+)", file.read_text(), re.MULTILINE)
            self.assertEqual(defined, [], msg=lambda _, file=file: relative(file))


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
    """What tools/lint.py thread-safety relies on: both headers make clang refuse."""

    @parametrize(
        "header, namespace",
        [
            subtest(("third_party/openreg_runtime/src/mutex.h", "openreg"), name="runtime"),
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

    def test_no_mutex_is_unchecked(self):
        # Mutexes of torch, which clang cannot check.
        of_torch = {"csrc/memory/PinnedAllocator.cpp", "csrc/random/Generator.cpp"}
        files = [
            path
            for path in [*runtime_sources(), *backend_files()]
            if path.name not in ("mutex.h", "Mutex.h")
            and re.search(r"std::(shared_)?mutex|std::lock_guard", code_of(path))
        ]
        self.assertEqual({relative(path) for path in files}, of_torch)


instantiate_parametrized_tests(TestKernelStubs)
instantiate_parametrized_tests(TestLocks)
instantiate_parametrized_tests(TestKernelArguments)

if __name__ == "__main__":
    run_tests()
