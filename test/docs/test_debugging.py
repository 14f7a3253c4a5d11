"""docs/debugging.md: gdb prints what its sessions show; its functions and its command exist."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import pytest
from common import TestCase, instantiate_parametrized_tests, parametrize, run_tests, torch_openreg

_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "debugging.md").read_text()
_COMMANDS = re.search(r"<!-- gdb commands -->\n```text\n(.*?)```", _PAGE, re.DOTALL)[1]
_TIMEOUT_S = 600

# A package that torch builds as it does minimal/: the smallest one.
_SETUP = """
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension

setup(
    name="smallest",
    ext_modules=[Extension("smallest", ["smallest.cpp"])],
    cmdclass={"build_ext": BuildExtension},
)
"""


class _Session:
    """A session of the page, with the program above it.

    Attributes:
        settings: environment variables.
        commands: what is typed.
        shown: lines that gdb prints, in their order; "..." stands for any text.
    """

    def __init__(self, name: str) -> None:
        before, _, text = _PAGE.partition(f"<!-- gdb: {name} -->\n```text\n$ ")
        self.program = re.findall(r"```python\n(.*?)```", before, re.DOTALL)[-1]
        first, *lines = text.partition("\n```")[0].splitlines()
        settings, program, _ = first.partition("gdb -q --args python train.py")
        assert program, first
        self.settings = dict(one.split("=") for one in settings.split())
        self.commands = [line[6:] for line in lines if line.startswith("(gdb) ")]
        self.shown = [line for line in lines if not line.startswith("(gdb) ")]


class TestDebugging(TestCase):
    @pytest.mark.slow("name_crash", "name_kernel", "name_wait")
    @unittest.skipIf(shutil.which("gdb") is None, "needs gdb")
    @parametrize("name", ["kernel", "wait", "crash"])
    def test_session_prints_what_the_page_shows(self, name):
        session = _Session(name)
        commands = [f"-ex={one}" for one in [*_COMMANDS.splitlines(), *session.commands]]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENREG_")}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(session.program)
            run = subprocess.run(
                ["gdb", "-nx", "-batch", *commands, "--args", sys.executable, "train.py"],
                cwd=folder,
                env=environment | session.settings,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
            )
        self.assertGreater(len(session.shown), 3)
        # The compiler may have split a function.
        printed = re.sub(r" \[clone [.\w]+\]", "", run.stdout)
        at = 0
        for line in session.shown:
            # Numbers of threads and frames, and the name of Python, depend on the machine.
            pattern = re.escape(line).replace(re.escape("..."), ".*")
            pattern = re.sub(r"\d+", r"\\d+", pattern).replace('"python"', '"python.*"')
            found = re.compile(f"^{pattern}$", re.MULTILINE).search(printed, at)
            self.assertIsNotNone(found, f"expected {line!r} in:\n{printed[at:]}\n{run.stderr}")
            at = found.end()

    @pytest.mark.slow
    def test_command_writes_the_commands_of_a_build_with_torch(self):
        (command,) = re.findall(r"<!-- command: minimal-clangd -->\n```sh\n(.*)\n```", _PAGE)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "setup.py").write_text(_SETUP)
            (folder / "smallest.cpp").write_text("int one() { return 1; }\n")
            environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
            for words in ([sys.executable, "setup.py", "-q", "build_ext"], ["bash", "-c", command]):
                subprocess.run(words, cwd=folder, env=environment, check=True, timeout=_TIMEOUT_S)
            (entry,) = json.loads((folder / "build" / "compile_commands.json").read_text())
            self.assertEqual(entry["file"], str((folder / "smallest.cpp").resolve()))
            self.assertIn(" -c ", entry["command"])

    @unittest.skipIf(shutil.which("nm") is None, "needs nm")
    def test_functions_of_the_table_are_in_the_runtime(self):
        table = re.search(r"<!-- functions -->\n((?:\|.*\n)+)", _PAGE)[1]
        functions = re.findall(r"^\| `([\w:]+)`", table, re.MULTILINE)
        library = Path(torch_openreg.__file__).parent / "lib" / "libopenreg.so"
        symbols = subprocess.check_output(["nm", "-C", str(library)], text=True)
        self.assertEqual(len(functions), 4)
        for function in functions:
            self.assertIn(f" {function}(", symbols)


instantiate_parametrized_tests(TestDebugging)

if __name__ == "__main__":
    run_tests()
