"""minimal/ and examples/chip/: each file has a counterpart that does it in full.

tools/minimal.py builds them and runs their tests; .ci/run has a step for that.
"""

import ast
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
import unittest
from pathlib import Path

import torch
from torch.testing._internal.common_utils import TestCase, run_tests

ROOT = Path(__file__).resolve().parents[2]
MINIMAL = ROOT / "minimal"
LINES = 740
LINES_WITH_COMMENTS = 1000

EXAMPLES = ROOT / "examples" / "chip"
RUNTIME = ROOT / "third_party" / "openreg_runtime"

for folder in ("test/conformance", "minimal"):
    sys.path.insert(0, str(ROOT / folder))

import rename  # noqa: E402  (needs the path above)
import twin  # noqa: E402

_spec = importlib.util.spec_from_file_location("kit", ROOT / "tools" / "minimal.py")
kit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kit)

NATIVE = sorted(file for file in MINIMAL.glob("csrc/**/*") if file.suffix in (".cpp", ".h"))
PYTHON = [MINIMAL / "setup.py", *sorted(MINIMAL.glob("python/*/*.py"))]
ADDED = sorted([*EXAMPLES.glob("csrc/*/*.*"), *EXAMPLES.glob("python/*.py")])
ADDED_LINES = 80

# What PyTorch's pages on accelerators call things.
NAMES = {
    "csrc/runtime/Functions.h": (
        *("device_count", "current_device", "set_device", "exchange_device"),
        "maybe_exchange_device",
    ),
    "csrc/runtime/Guard.cpp": ("DeviceGuardImplInterface", "C10_REGISTER_GUARD_IMPL"),
    "csrc/runtime/Hooks.cpp": ("PrivateUse1HooksInterface", "RegisterPrivateUse1HooksInterface"),
    "csrc/runtime/Generator.h": ("GeneratorImpl", "getDefaultGenerator"),
    "csrc/runtime/DeviceAllocator.cpp": ("DeviceAllocator", "REGISTER_ALLOCATOR", "recordStream"),
    "csrc/runtime/HostAllocator.cpp": ("HostAllocator", "REGISTER_HOST_ALLOCATOR"),
    "csrc/runtime/Stream.h": ("currentStream",),
    "csrc/runtime/Event.h": ("waitForStream",),
    "csrc/aten/Minimal.cpp": (
        *("empty.memory_format", "empty_strided", "as_strided", "view", "_reshape_alias"),
        *("resize_", "_local_scalar_dense", "set_.source_Tensor", "set_.source_Storage"),
        "set_.source_Storage_storage_offset",
    ),
    "csrc/aten/Copy.cpp": ("_copy_from", "_copy_from_and_resize"),
    "csrc/aten/Fallback.cpp": ("cpu_fallback", "makeFromBoxedFunction"),
    "csrc/Module.cpp": (
        *(
            "_init",
            "_isInBadFork",
            "_get_device_count",
            "_get_default_generator",
            "defaultGenerator",
        ),
    ),
    "python/torch_minimal/__init__.py": (
        *("_autoload", "rename_privateuse1_backend", "_register_device_module"),
        "generate_methods_for_privateuse1_backend",
    ),
    "python/torch_minimal/device.py": ("_lazy_init",),
    "python/torch_minimal/random.py": ("manual_seed", "_get_default_generator"),
}


def native_lines(text: str) -> int:
    """Lines of C++ that have code: neither blank, nor a comment only."""
    return sum(not re.match(r"\s*(//.*)?$", line) for line in text.splitlines())


def python_lines(text: str) -> int:
    """Lines of Python that have code: neither blank, nor a comment, nor a docstring."""
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored | {tokenize.ENDMARKER}:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        documented = (ast.Module, ast.FunctionDef, ast.ClassDef)
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            string = node.body[0]
            lines -= set(range(string.lineno, string.end_lineno + 1))
    return len(lines)


class TestMinimal(TestCase):
    def test_backend_has_about_1000_lines_with_comments(self):
        count = sum(len(file.read_text().splitlines()) for file in (*NATIVE, *PYTHON))
        self.assertEqual(round(count, -2), LINES_WITH_COMMENTS)

    def test_backend_has_about_740_lines_of_code(self):
        count = sum(native_lines(file.read_text()) for file in NATIVE)
        count += sum(python_lines(file.read_text()) for file in PYTHON)
        self.assertLess(abs(count - LINES), 20)

    def test_counters_leave_out_comments_and_blank_lines(self):
        self.assertEqual(native_lines("// a\n\n  // b\nint c;  // d\n}\n"), 2)
        self.assertEqual(python_lines('"""a\n\nb"""\n\n# c\nd = 1  # e\n\n\ndef f():\n  "g"\n'), 2)

    def test_each_file_names_its_step_and_an_existing_counterpart(self):
        steps = set(re.findall(r"^\| (\d+) \|", (ROOT / "docs/bring_up.md").read_text(), re.M))
        for file in (*NATIVE, *PYTHON, *ADDED):
            if file.name == "setup.py":
                continue
            head = " ".join(re.findall(r"(?:^//|^\"\"\"|^)\s*(.*)", file.read_text()[:500], re.M))
            step = re.search(r"Steps? (\d+)", head)
            self.assertIsNotNone(step, file)
            self.assertIn(step[1], steps, file)
            counterpart = re.search(r"In full: ([\w./]*\w)", head)
            self.assertIsNotNone(counterpart, file)
            self.assertTrue((ROOT / counterpart[1]).exists(), f"{file}: {counterpart[1]}")

    def test_names_are_those_of_the_pages(self):
        for file, names in NAMES.items():
            text = (MINIMAL / file).read_text()
            self.assertEqual([name for name in names if name not in text], [], file)

    def test_name_of_the_device_is_in_one_place_of_each_language(self):
        for files, place in ((NATIVE, "Functions.h"), (PYTHON, "setup.py")):
            texts = {file: file.read_text().count('"minimal"') for file in files}
            self.assertEqual({f.name: n for f, n in texts.items() if n}, {place: 1})
        for file in (*MINIMAL.glob("test/*.py"), *ADDED, *EXAMPLES.glob("test/*.py")):
            self.assertNotIn("minimal", file.read_text(), file)

    def test_package_needs_nothing_of_torch_openreg(self):
        for file in (*NATIVE, *PYTHON, *ADDED, *MINIMAL.glob("test/*.py")):
            uses = re.findall(
                r"^\s*(?:from|import|#include)\b.*torch_openreg", file.read_text(), re.M
            )
            self.assertEqual(uses, [], file)

    def test_file_of_an_example_has_at_most_80_lines_of_code_and_is_on_the_page(self):
        page = (ROOT / "docs/bring_up.md").read_text()
        text = (EXAMPLES / "README.md").read_text()
        for file in ADDED:
            lines = python_lines if file.suffix == ".py" else native_lines
            self.assertLessEqual(lines(file.read_text()), ADDED_LINES, file)
            path = file.relative_to(EXAMPLES).as_posix()
            self.assertIn(f"<!-- quotes examples/chip/{path}: ", page)
            self.assertIn(f"`{path}`", text)

    def test_source_of_the_whole_driver_has_every_source(self):
        included = re.findall(r'^#include "(.*)"$', (RUNTIME / "openreg.cpp").read_text(), re.M)
        sources = [file.relative_to(RUNTIME).as_posix() for file in RUNTIME.glob("src/**/*.cpp")]
        self.assertEqual(included, sorted(sources))

    def test_build_names_a_folder_that_has_no_driver(self):
        with tempfile.TemporaryDirectory() as folder:
            for driver in ("absent", folder):
                run = subprocess.run(
                    [sys.executable, "setup.py", "--name"],
                    cwd=MINIMAL,
                    env=os.environ | {"CHIP_DRIVER": driver, "PWD": str(ROOT)},
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(run.returncode, 1, run.stderr)
                self.assertEqual(
                    run.stderr.splitlines()[-1],
                    "CHIP_DRIVER: expected a folder with include/openreg/openreg.h, got "
                    f"{ROOT / driver}",
                )

    def test_pip_shows_the_folder_that_has_no_driver_and_nothing_else_of_the_build(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "mychip"
            self.assertEqual(self.rename("mychip", copy).stderr, "")
            pip = ["-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index"]
            run = subprocess.run(
                [sys.executable, *pip, "--target", Path(folder) / "site", copy],
                cwd=ROOT,
                env=os.environ | {"CHIP_DRIVER": "absent", "PWD": str(ROOT)},
                capture_output=True,
                text=True,
            )
            self.assertEqual(run.returncode, 1, run.stderr)
            output = re.search(r"lines of output\]\n(.*)\[end of output\]", run.stderr, re.DOTALL)
            self.assertEqual(
                output[1].strip(),
                "CHIP_DRIVER: expected a folder with include/openreg/openreg.h, got "
                f"{ROOT / 'absent'}",
            )

    def test_driver_is_found_from_the_folder_of_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "mychip"
            self.assertEqual(self.rename("mychip", copy).stderr, "")
            run = subprocess.run(
                [sys.executable, "setup.py", "--name"],  # pip runs it in this folder, too
                cwd=copy,
                env=os.environ
                | {"CHIP_DRIVER": RUNTIME.relative_to(ROOT).as_posix(), "PWD": str(ROOT)},
                capture_output=True,
                text=True,
            )
            self.assertEqual(run.stdout.splitlines()[-1:], ["torch_mychip"], run.stderr)

    def rename(self, *arguments):
        """Runs minimal/rename.py."""
        script = [sys.executable, MINIMAL / "rename.py", *arguments]
        return subprocess.run(script, capture_output=True, text=True)

    def test_copy_is_the_start_of_a_project(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "mychip"
            self.assertEqual(self.rename("mychip", copy).stderr, "")
            files = {
                file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file()
            }
            own = {file.relative_to(MINIMAL).as_posix() for file in (*NATIVE, *PYTHON)}
            expected = {name.replace("torch_minimal", "torch_mychip") for name in own}
            self.assertLessEqual(expected | {"LICENSE", "README.md", "pyproject.toml"}, files)
            self.assertEqual(
                {file for file in files if "minimal" in file or "rename" in file}, set()
            )
            self.assertEqual((copy / "LICENSE").read_text(), (ROOT / "LICENSE").read_text())
            for file in files:
                text = (copy / file).read_text()
                self.assertNotIn("docs: ", text, file)
                self.assertNotIn('"minimal"', text, file)
                self.assertNotIn("./minimal", text, file)
                self.assertFalse(text.endswith("\n\n"), file)
            readme = (copy / "README.md").read_text()
            self.assertIn("# torch_mychip\n", readme)
            for link in re.findall(r"\]\(([^)#]+)\)", readme):
                self.assertTrue((copy / link).exists(), link)

    def test_copy_without_arguments_has_a_usage(self):
        run = self.rename()
        self.assertEqual(run.returncode, 2)
        self.assertIn("usage: rename.py [-h] name folder\n", run.stderr)

    def test_names_that_a_device_cannot_have_are_refused(self):
        identifier = "expected a Python identifier of lower-case letters and underscores, got "
        taken = "expected a name that no other device has, got {!r}, which is taken"
        for name, text in (
            *(
                (name, f"{identifier}{name!r}")
                for name in ("my-chip", "Cuda", "chip2", "class", "")
            ),
            *((name, taken.format(name)) for name in ("cuda", "openreg")),
            ("nn", "expected a name that torch does not have, got torch.nn"),
        ):
            run = self.rename(name, "absent/folder")
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertEqual(
                run.stderr.splitlines()[-1], f"rename.py: error: argument name: {text}"
            )

    def test_existing_folder_is_refused(self):
        run = self.rename("mychip", str(ROOT))
        self.assertEqual(run.returncode, 2)
        self.assertEqual(
            run.stderr.splitlines()[-1],
            "rename.py: error: argument folder: expected a folder that does not exist, got "
            f"'{ROOT}'",
        )

    def test_names_of_torchs_devices_are_taken(self):
        with self.assertRaises(RuntimeError) as caught:
            torch.device("absent")
        listed = re.search(r"Expected one of (.*) device type", str(caught.exception))[1]
        self.assertLessEqual({name for name in listed.split(", ")}, rename.TAKEN)

    @unittest.skipIf(shutil.which("git") is None, "git applies the patch")
    def test_tests_do_not_take_another_device_for_the_backend(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "mychip"
            subprocess.run([sys.executable, MINIMAL / "rename.py", "mychip", copy], check=True)
            pytest, script = (
                ["-m", "pytest", "-q", "-p", "no:cacheprovider"],
                ["test/test_device.py"],
            )
            for tests, name, settings, found, command in (
                (MINIMAL, "minimal", {}, "openreg", pytest),
                (copy, "mychip", {"OPENREG_DEVICE_TYPE": "none"}, "no device", pytest),
                (copy, "mychip", {}, "openreg", script),
            ):
                run = subprocess.run(
                    [sys.executable, *command],
                    cwd=tests,
                    env={k: v for k, v in os.environ.items() if not k.startswith("OPENREG")}
                    | settings,
                    capture_output=True,
                    text=True,
                )
                error, status = ("ERROR", 4) if command is pytest else ("RuntimeError", 1)
                self.assertEqual(run.returncode, status, run.stdout + run.stderr)
                self.assertIn(
                    f"{error}: the tests found {found}, not {name}: install it, or set "
                    "OPENREG_DEVICE_TYPE=none\n",
                    run.stderr,
                )

    def test_patch_of_the_defective_twin_applies(self):
        with tempfile.TemporaryDirectory() as folder:
            twin.patched_copy(Path(folder) / "twin")
            guard = (Path(folder) / "twin" / "csrc" / "runtime" / "Guard.cpp").read_text()
        self.assertIn("// mistake: the new device", guard)

    def test_failures_of_the_kit_are_those_of_the_release(self):
        before, after = (kit.known_failures((2, minor)) for minor in (14, 15))
        self.assertEqual(after - before, {"test_op_errors::TestErrors::test_errors_aminmax"})
        self.assertIn("test_op_errors::TestErrors::test_errors_take", before & after)

    def test_known_failures_with_all_chapters_name_tests_and_operators_of_the_kit(self):
        kit_files = sorted((ROOT / "torch_openreg/conformance").glob("*.py"))
        texts = "".join(file.read_text() for file in kit_files)
        listed = (EXAMPLES / "README.md").read_text().partition("| tests | cause |\n")[2]
        tests = re.findall(r"`(test_\w+)`", listed)
        self.assertEqual(len(tests), 3)
        for name in tests:
            self.assertRegex(texts, rf"def {name}\b")
        filled = re.search(r"_READS_NEW_MEMORY = \{(.*?)\}", texts, re.DOTALL)[1]
        operators = re.findall(r"`((?:new_)?empty\w*)`", listed)
        self.assertEqual(operators, re.findall(r'"((?:new_)?empty\w*)"', filled))

    def test_map_has_every_file(self):
        text = (MINIMAL / "README.md").read_text()
        for file in (*NATIVE, *PYTHON):
            self.assertIn(file.name, text)


if __name__ == "__main__":
    run_tests()
