"""docs/own_kernels.md: its tables are about files that exist, and its commands merge."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from source_tree import BACKEND, ROOT, backend_files, includes_of, part_of
from torch.testing._internal.common_utils import TestCase, run_tests

PAGE = (ROOT / "docs" / "own_kernels.md").read_text()
MINIMAL = ROOT / "minimal"


def rows(begin: str) -> list[list[str]]:
    """The cells of the table that begins with a line, without its first two lines."""
    table = re.search(rf"{re.escape(begin)}\n((?: *\|.*\n)+)", PAGE)
    lines = table[1].splitlines()[begin.startswith("<!--") + 1 :]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]


def code_words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


class TestTables(TestCase):
    def test_parts_of_the_operator_are_in_it(self):
        text = (MINIMAL / "csrc" / "aten" / "Add.cpp").read_text()
        parts = rows("| part of `Add.cpp` | what it does | with a kernel of the chip |")
        self.assertEqual(len(parts), 6)
        for part, *_ in parts:
            self.assertIn(code_words(part)[0], text)

    def test_every_folder_of_operators_has_a_row(self):
        table = rows("| folder | with kernels of the chip |")
        named = [name for folder, _ in table for name in code_words(folder)]
        folders = [f"{path.name}/" for path in (BACKEND / "aten").iterdir() if path.is_dir()]
        self.assertEqual(sorted(named), sorted(folders))

    def test_every_unit_of_the_folder_has_a_row_with_the_folders_that_include_it(self):
        includers: dict[str, set[str]] = {
            path.stem: set() for path in (BACKEND / "aten" / "cpu").iterdir()
        }
        for path in backend_files():
            folder = f"{part_of(path).removeprefix('aten/')}/"
            for include in includes_of(path):
                header = include.strip('<">')
                unit = Path(header).stem
                if unit in includers and path.stem != unit:
                    self.assertIn(
                        header.rpartition("/")[0], ("csrc/aten/cpu", "torch_openreg/aten")
                    )
                    includers[unit].add(folder)
        table = rows("<!-- units: csrc/aten/cpu -->")
        named = {code_words(cells[0])[0]: set(code_words(cells[3])) for cells in table}
        self.assertEqual(named, includers)

    def test_interfaces_exist_in_torch_and_in_minimal(self):
        headers = rows("<!-- headers -->")
        self.assertEqual(len(headers), 6)
        for header, file in headers:
            path = Path(torch.__file__).parent / "include" / code_words(header)[0]
            interface = re.search(rf"\b{path.stem.removeprefix('Caching')}\b", path.read_text())
            self.assertIsNotNone(interface, path.name)
            self.assertTrue((MINIMAL / code_words(file)[0]).is_file(), file)


class TestMerge(TestCase):
    def run_in(self, folder: Path, *commands: str) -> str:
        identity = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER")
                    for what in ("NAME", "EMAIL")}  # fmt: skip
        programs = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
            cwd=folder,
            env=os.environ | identity | {"PATH": programs, "GIT_CONFIG_GLOBAL": os.devnull},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(run.returncode, 0, run.stdout)
        return run.stdout

    def test_commands_bring_changes_of_both_sides_together(self):
        block = re.search(r"<!-- command: merge -->\n```sh\n(.*?)```", PAGE, re.DOTALL)[1]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "bin").mkdir()
            (folder / "bin" / "python").symlink_to(sys.executable)
            clone = folder / "torch_openreg" / "minimal"
            shutil.copytree(MINIMAL, clone, ignore=shutil.ignore_patterns("build", "*.egg-info"))
            shutil.copy(ROOT / "LICENSE", clone.parent)
            self.run_in(
                folder,
                "python torch_openreg/minimal/rename.py mychip mychip",
                "git init -q -b upstream mychip",
                "git -C mychip add --all",
                "git -C mychip commit -qm minimal/",
                "git -C mychip checkout -qb main",
            )
            own, theirs = "csrc/aten/Add.cpp", "csrc/aten/Copy.cpp"
            for file, text in ((folder / "mychip" / own, "// own\n"), (clone / theirs, "// new\n")):
                file.write_text(file.read_text() + text)
            (clone / "csrc" / "aten" / "Fallback.cpp").unlink()
            self.run_in(folder, "git -C mychip commit -qam own", block)
            copy = folder / "mychip"
            self.assertTrue((copy / own).read_text().endswith("// own\n"))
            self.assertTrue((copy / theirs).read_text().endswith("// new\n"))
            self.assertFalse((copy / "csrc" / "aten" / "Fallback.cpp").exists())
            self.assertIn('"mychip"', (copy / "setup.py").read_text())


if __name__ == "__main__":
    run_tests()
