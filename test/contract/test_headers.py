"""Every header compiles alone, and twice in a row.

Note [Headers of torch]
Most headers of the backend include one of torch's, whose compilation takes most of the time. So
these few are precompiled, and a header is compiled after the one that it includes, itself or
through others of ours. It cannot use more than what it has asked for: each of the others is
compiled alone, too. To precompile a header takes as long as to compile it three times, so its first
two uses in a process do without: a sample of the tests has few of each.
"""

import collections
import functools
import subprocess
import sysconfig
import tempfile
import unittest
from pathlib import Path

import pytest
from source_tree import (
    BACKEND,
    INCLUDE,
    ROOT,
    RUNTIME,
    compiler,
    includes_of,
    public_headers,
    relative,
)
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch.utils.cpp_extension import include_paths

from torch_openreg import cpp_extension

pytestmark = pytest.mark.sample(0.013)

(INSTALLED,) = map(Path, cpp_extension.include_paths())
COMPILER = compiler()
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-function", "-Werror")
FOREIGN = (*include_paths(), sysconfig.get_paths()["include"])
# See Note [Headers of torch]; the first that a header includes is used.
OF_TORCH = (
    "<torch/csrc/distributed/c10d/Backend.hpp>",
    "<ATen/core/dispatch/Dispatcher.h>",
    "<ATen/core/IListRef.h>",
    "<ATen/core/ivalue.h>",
    "<ATen/core/Tensor.h>",
    "<c10/core/CachingDeviceAllocator.h>",
    "<c10/core/Allocator.h>",
)
USES_WITHOUT = 2  # of one of these in a process, before it is precompiled


uses_of_torch: collections.Counter[str] = collections.Counter()


@functools.cache
def foreign_includes(header: Path) -> frozenset[str]:
    """What a header includes, itself or through others of ours, and is not ours."""
    found = set()
    for include in includes_of(header):
        name = include[1:-1]
        folders = (ROOT, INCLUDE.parent, RUNTIME / "include")
        own = next((folder / name for folder in folders if (folder / name).is_file()), None)
        found |= {include} if own is None else foreign_includes(own)
    return frozenset(found)


@functools.cache
def folder_of_compiled() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()  # removed when the process ends


@functools.cache
def compiled(include: str, *flags: str) -> Path:
    """Compiles a header of torch; returns what to include in its place."""
    header = Path(folder_of_compiled().name) / f"{include.strip('<>').replace('/', '_')}"
    header.write_text(f"#include {include}\n")
    command = [COMPILER, "-x", "c++-header", *WARNINGS, *flags, str(header), "-o", f"{header}.gch"]
    subprocess.run(command, cwd=ROOT, check=True)
    return header


def each(paths):
    """Parameters of a test, named after the files."""
    return [subtest(path, name=f"{path.parent.name}_{path.stem}") for path in paths]


@unittest.skipIf(COMPILER is None, "needs a C++ compiler")
class TestHeaders(TestCase):
    def check(self, include: str, language: str, *flags: str) -> None:
        command = [COMPILER, "-x", language, "-fsyntax-only", *WARNINGS, *flags, "-"]
        result = subprocess.run(
            command, input=f"#include {include}\n" * 2, cwd=ROOT, capture_output=True, text=True
        )
        self.assertEqual(result.returncode, 0, msg=lambda _: f"{include}\n{result.stderr}")

    @parametrize("header", each(public_headers()))
    def test_runtime_header_is_valid_c99(self, header):
        self.check(
            f"<openreg/{header.name}>", "c", "-std=c99", "-pedantic", f"-I{RUNTIME / 'include'}"
        )

    @parametrize("header", each(public_headers()))
    def test_runtime_header_is_valid_in_cxx(self, header):
        self.check(
            f"<openreg/{header.name}>", "c++", "-std=c++17", "-pedantic", f"-I{RUNTIME / 'include'}"
        )

    @parametrize("header", each(sorted((RUNTIME / "src").rglob("*.h"))))
    def test_private_header_of_the_runtime_compiles_alone(self, header):
        folders = (f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}")
        self.check(f'"{header.parent.name}/{header.name}"', "c++", "-std=c++20", *folders)

    @parametrize("header", each(sorted(BACKEND.rglob("*.h"))))
    def test_header_of_the_backend_compiles_alone(self, header):
        flags = (
            *("-std=c++20", "-DAT_PER_OPERATOR_HEADERS"),  # those of setup.py
            *(f"-I{folder}" for folder in (ROOT, INCLUDE.parent, RUNTIME / "include")),
            *(f"-isystem{folder}" for folder in FOREIGN),
        )
        of_torch = [one for one in OF_TORCH if one in foreign_includes(header)][:1]
        uses_of_torch.update(of_torch)
        often = [one for one in of_torch if uses_of_torch[one] > USES_WITHOUT]
        before = [f"-include{compiled(one, *flags)}" for one in often]
        self.check(f'"{relative(header)}"', "c++", *flags, *before, "-Winvalid-pch")

    # These are the public ones of the backend: see TestInstalledHeaders.
    @parametrize("header", each(sorted((INSTALLED / "torch_openreg").rglob("*.h"))))
    def test_installed_header_compiles_alone_without_the_source_tree(self, header):
        self.check(
            f"<{header.relative_to(INSTALLED).as_posix()}>",
            "c++",
            "-std=c++20",
            f"-I{INSTALLED}",
            *(f"-isystem{folder}" for folder in include_paths()),
        )


@unittest.skipIf(COMPILER is None, "needs a C++ compiler")
class TestChecks(TestCase):
    """OPENREG_CHECK puts the name of a function into texts that users read."""

    def compile(self, statement: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                COMPILER,
                *("-x", "c++", "-fsyntax-only", "-std=c++20", f"-I{INSTALLED}"),
                *(f"-isystem{folder}" for folder in FOREIGN),
                "-",
            ],
            input=f"""
                #include <openreg/openreg.h>
                #include <torch_openreg/core/Exception.h>
                void function(orError_t error) {{ {statement} }}
            """,
            capture_output=True,
            text=True,
        )

    @parametrize("macro", ["OPENREG_CHECK", "OPENREG_WARN_IF_FAILED"])
    def test_a_call_of_the_runtime_is_accepted_and_nothing_else(self, macro):
        good = self.compile(f"std::ignore = error; {macro}(orDeviceSynchronize());")
        self.assertEqual(good.returncode, 0, good.stderr)
        for bad in ("error", "(error)", "error == orSuccess ? orSuccess : error"):
            result = self.compile(f"{macro}({bad});")
            self.assertNotEqual(result.returncode, 0, bad)
            self.assertIn("OPENREG_CHECK_RESULT takes an error", result.stderr)


class TestInstalledHeaders(TestCase):
    def test_headers_of_the_runtime_are_those_of_the_sources(self):
        installed = {path.name: path.read_text() for path in (INSTALLED / "openreg").glob("*.h")}
        self.assertEqual(installed, {path.name: path.read_text() for path in public_headers()})

    def test_headers_of_the_backend_are_those_of_the_sources(self):
        folder = INSTALLED / "torch_openreg"
        headers = sorted(folder.rglob("*.h"))
        self.assertGreater(len(headers), 5)
        for header in headers:
            source = (INCLUDE / header.relative_to(folder)).read_text()
            self.assertEqual(header.read_text(), source, f"{header.name}: build again")

    def test_headers_of_the_backend_include_no_header_that_is_not_installed(self):
        for header in sorted((INSTALLED / "torch_openreg").rglob("*.h")):
            for include in includes_of(header):
                if include.startswith('"'):
                    self.assertTrue((INSTALLED / include.strip('"')).is_file(), include)


instantiate_parametrized_tests(TestHeaders)
instantiate_parametrized_tests(TestChecks)

if __name__ == "__main__":
    run_tests()
