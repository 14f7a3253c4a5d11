"""Rules for all files of the repository."""

import re
import unittest
from collections import Counter

from source_tree import (
    RUNTIME,
    backend_files,
    code_of,
    header_of,
    includes_of,
    public_headers,
    relative,
    repository_files,
    runtime_sources,
)
from torch.testing._internal.common_utils import TestCase, run_tests

FILES = repository_files()
BUILT_SUFFIXES = {".so", ".o", ".a", ".d", ".pyc", ".egg-info", ".whl", ".ninja", ".log", ".trace"}
MAX_SIZE = 2 * 1024 * 1024
MAX_FILES = 30  # of a folder: a reader sees them at once

# A path on one person's machine. A file of the system, such as /proc/self/maps, is none.
MACHINE_PATH = re.compile(r"(?<![\w.*/}])/(home|root|Users|work|workspace|mnt)/\w+")

NATIVE_FILES = [*public_headers(), *runtime_sources(), *backend_files()]
HEADERS = [path for path in NATIVE_FILES if path.suffix == ".h"]

# Codes that no test can produce, with the reason.
UNREACHABLE_ERRORS = {
    "orSuccess": "is no error",
    "orErrorUnknown": "is the code of unexpected failures",
}

# Codes that the runtime itself does not return, with the reason.
UNRETURNED_ERRORS = UNREACHABLE_ERRORS | {
    "orErrorAssert": "is for kernels to return",
    "orErrorNotSupported": "is for kernels to return",
}


@unittest.skipIf(FILES is None, "needs a clone and git")
class TestFiles(TestCase):
    def test_no_built_file_belongs_to_the_repository(self):
        built = [
            relative(path)
            for path in FILES
            if path.suffix in BUILT_SUFFIXES or {"build", "__pycache__"} & set(path.parts)
        ]
        self.assertFalse(built)

    def test_no_file_is_large(self):
        large = [relative(path) for path in FILES if path.stat().st_size > MAX_SIZE]
        self.assertFalse(large)

    def test_no_folder_of_sources_or_tests_has_many_files(self):
        names = (relative(path) for path in FILES if not path.is_symlink())
        folders = Counter(
            name.rpartition("/")[0]
            for name in names
            if name.startswith(("csrc/", "include/", "test/", "third_party/"))
        )
        self.assertGreater(len(folders), 40)
        self.assertEqual({name: n for name, n in folders.items() if n > MAX_FILES}, {})

    def test_no_file_names_a_path_of_one_machine(self):
        found = []
        for path in FILES:
            try:
                lines = path.read_text().splitlines()
            except UnicodeDecodeError:
                continue  # not a text
            found += [
                f"{relative(path)}:{number}"
                for number, line in enumerate(lines, 1)
                if MACHINE_PATH.search(line)
            ]
        self.assertFalse(found)

    def test_every_test_file_runs_by_itself(self):
        tests = [path for path in FILES if re.fullmatch(r"test/.*/test_\w+\.py", relative(path))]
        self.assertGreater(len(tests), 100)
        runs = re.compile(
            r"^    (run_tests\(\)|sys\.exit\(pytest\.main\(\[__file__, \*sys\.argv\[1:\]\]\)\))$",
            re.MULTILINE,
        )
        self.assertFalse([relative(path) for path in tests if not runs.search(path.read_text())])

    def test_no_test_sleeps(self):
        tests = [path for path in FILES if path.match("test_*.py")]
        sleeping = re.compile(r"\bsleep\(")
        self.assertFalse([relative(path) for path in tests if sleeping.search(path.read_text())])


class TestNativeFiles(TestCase):
    def test_headers_begin_with_what_they_are_about(self):
        bad = [relative(path) for path in HEADERS if not path.read_text().startswith(("//", "/*"))]
        self.assertFalse(bad)

    def test_headers_of_the_backend_and_private_ones_are_guarded_by_pragma_once(self):
        headers = {*HEADERS} - {*public_headers()}
        bad = [relative(path) for path in headers if "\n#pragma once\n" not in path.read_text()]
        self.assertFalse(bad)

    def test_public_headers_are_guarded_by_their_name(self):
        for path in public_headers():
            guard = f"OPENREG_{path.stem.upper()}_H"
            self.assertIn(f"#ifndef {guard}\n#define {guard}\n", path.read_text())

    def test_operator_files_without_a_header_begin_with_their_family(self):
        bad = [
            relative(path)
            for path in backend_files("aten", "extras/custom", suffixes=(".cpp",))
            if header_of(path) is None and not path.read_text().startswith("//")
        ]
        self.assertFalse(bad)

    def test_files_include_their_own_header_first(self):
        for path in backend_files(suffixes=(".cpp",)):
            header = header_of(path)
            if header is not None:
                own = relative(header).removeprefix("include/")
                self.assertEqual(includes_of(path)[0], f'"{own}"', msg=relative(path))

    def test_no_file_includes_a_header_twice(self):
        twice = [
            f"{relative(path)} includes {include}"
            for path in NATIVE_FILES
            for include, count in Counter(includes_of(path)).items()
            if count > 1
        ]
        self.assertFalse(twice)

    def test_notes_that_are_referred_to_have_one_home(self):
        homes = Counter()
        references = set()
        for path in NATIVE_FILES:
            # A note's definition has the title on a separate line.
            text = path.read_text()
            titles = re.findall(r"^[\s/*]*Note \[([^\]]+)\]$", text, re.MULTILINE)
            homes.update(titles)
            text = re.sub(r"\n\s*(?://|\*)\s*", " ", text)
            references.update(set(re.findall(r"Note \[([^\]]+)\]", text)) - set(titles))
        self.assertGreater(len(homes), 5)
        self.assertFalse(references - set(homes))
        self.assertFalse([title for title, count in homes.items() if count > 1])

    def test_regions_quoted_by_the_documentation_begin_and_end(self):
        names = Counter()
        for path in NATIVE_FILES:
            marks = re.findall(r"^\s*(?://|/\*) docs: ([\w-]+)", path.read_text(), re.MULTILINE)
            self.assertEqual(marks[1::2], ["end"] * (len(marks) // 2), msg=relative(path))
            self.assertEqual(len(marks) % 2, 0, msg=relative(path))
            names.update(marks[0::2])
        self.assertFalse([name for name, count in names.items() if count > 1])


class TestErrorCodes(TestCase):
    def codes(self):
        table = (RUNTIME / "include" / "openreg" / "error.h").read_text()
        return dict(re.findall(r"\bX\((or\w+), (\d+),", table))

    def test_error_numbers_are_unique(self):
        codes = self.codes()
        self.assertGreater(len(codes), 10)
        self.assertEqual(len(set(codes.values())), len(codes))

    def test_every_error_is_produced_by_a_test_of_the_runtime(self):
        tests = sorted(
            path
            for path in (RUNTIME / "test").rglob("*")
            if path.suffix in (".c", ".cpp", ".h", ".py")
        )
        text = "\n".join(
            path.read_text() if path.suffix == ".py" else code_of(path) for path in tests
        )
        untested = {name for name in self.codes() if not re.search(rf"\b{name}\b", text)} - set(
            UNREACHABLE_ERRORS
        )
        self.assertFalse(untested)

    def test_every_error_is_returned_by_the_runtime(self):
        text = "\n".join(code_of(path) for path in runtime_sources())
        unused = {name for name in self.codes() if not re.search(rf"\b{name}\b", text)}
        self.assertFalse(unused - set(UNRETURNED_ERRORS))


if __name__ == "__main__":
    run_tests()
