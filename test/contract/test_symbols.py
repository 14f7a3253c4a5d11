"""The symbols that the built libraries export.

Only strong symbols count: weak ones come from templates and inline functions of other people's
headers, and are not meant for anybody.
"""

import re
import shutil
import subprocess
import unittest

from source_tree import LIBRARIES, backend_files, code_of, runtime_functions
from torch.testing._internal.common_utils import TestCase, run_tests

# Older linkers define these in every library.
OF_THE_LINKER = {"__bss_start", "_edata", "_end", "_fini", "_init"}

# Generated code looks up this name; see wrapper.h.
OF_WRAPPERS = {"openreg_wrapper_functions"}

_WORD = r"[A-Za-z_]\w*"
_FUNCTION = re.compile(rf"(?<!#define )\bOPENREG_EXPORT\s+[^;{{}}()]*?\b({_WORD})\s*\(")
_CLASS = re.compile(rf"\b(?:class|struct)\s+OPENREG_EXPORT\s+({_WORD})")
_VARIABLE = re.compile(rf"\bOPENREG_EXPORT\s+extern\s[^;()]*?\b({_WORD});")
_NAME = re.compile(
    rf"^(?:(?:vtable|typeinfo|typeinfo name) for )?(?:c10|at)::openreg::(?:detail::)?({_WORD})"
)


def exports(library: str) -> set[str]:
    """Returns the strong symbols that a library defines, as C++ spells them."""
    output = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--demangle", LIBRARIES[library]],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = [line.split(maxsplit=2) for line in output.splitlines()]
    return {name for _, kind, name in rows if kind in "TDBRi"} - OF_THE_LINKER


def marked(pattern: re.Pattern[str]) -> set[str]:
    headers = backend_files(suffixes=(".h",))
    return {name for path in headers for name in pattern.findall(code_of(path))}


def names_of_the_backend() -> set[str]:
    return {_NAME.match(name)[1] for name in exports("libtorch_openreg.so") - OF_WRAPPERS}


@unittest.skipIf(shutil.which("nm") is None, "needs nm, of binutils")
class TestSymbols(TestCase):
    def test_runtime_exports_what_its_headers_declare(self):
        declared = runtime_functions()
        self.assertGreater(len(declared), 40)
        self.assertEqual(declared - exports("libopenreg.so"), set())

    def test_runtime_exports_nothing_else(self):
        self.assertEqual(exports("libopenreg.so") - runtime_functions(), set())

    def test_backend_exports_only_names_of_its_namespaces(self):
        foreign = {name for name in exports("libtorch_openreg.so") if not _NAME.match(name)}
        self.assertEqual(foreign, OF_WRAPPERS)

    def test_backend_exports_only_what_its_headers_mark(self):
        names = names_of_the_backend()
        all_marked = marked(_FUNCTION) | marked(_CLASS) | marked(_VARIABLE)
        self.assertEqual(names - all_marked, set())

    def test_backend_exports_all_that_its_headers_mark(self):
        names = names_of_the_backend()
        self.assertEqual((marked(_FUNCTION) | marked(_CLASS)) - names, set())

    def test_bindings_export_their_entry_point_alone(self):
        self.assertEqual(exports("_C"), {"PyInit__C"})


if __name__ == "__main__":
    run_tests()
