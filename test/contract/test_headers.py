"""Every header compiles alone, and twice in a row."""

import subprocess
import sysconfig
import unittest

from source_tree import ROOT, RUNTIME, backend_files, compiler, public_headers, relative
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch.utils.cpp_extension import include_paths

COMPILER = compiler()
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-function", "-Werror")


def each(paths):
    """Parameters of a test, named after the files."""
    return [subtest(path, name=path.stem) for path in paths]


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

    @parametrize("header", each(sorted((RUNTIME / "src").glob("*.h"))))
    def test_private_header_of_the_runtime_compiles_alone(self, header):
        folders = (f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}")
        self.check(f'"{header.name}"', "c++", "-std=c++20", *folders)

    @parametrize("header", each(backend_files(suffixes=(".h",))))
    def test_header_of_the_backend_compiles_alone(self, header):
        foreign = [*include_paths(), sysconfig.get_paths()["include"]]
        self.check(
            f'"{relative(header)}"',
            "c++",
            "-std=c++20",
            f"-I{ROOT}",
            f"-I{RUNTIME / 'include'}",
            *(f"-isystem{folder}" for folder in foreign),
        )


instantiate_parametrized_tests(TestHeaders)

if __name__ == "__main__":
    run_tests()
