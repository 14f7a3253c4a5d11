"""No list of devices in torch's Python code leaves this package out unnoticed.

torch has lists of device types, and questions for CUDA by name. ``device_lists.toml`` has each such
place of the supported releases, with what it means for our device type.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from common import TestCase, run_tests

from torch_openreg import _version

TORCH = Path(torch.__file__).parent
TABLE = tomllib.loads((Path(__file__).parent / "device_lists.toml").read_text())
VERDICTS = ("served", "refused", "no matter", "limit")

ANYWHERE = re.compile(r'"cuda", ?"xpu"|\bis_cuda\b|in \("cuda"')
# Where a program with a device passes: profiler, checkpoints, distributed tensors, FSDP2, Dynamo.
ON_THESE_PATHS = re.compile(r'torch\.version\.cuda|"cuda" in|device\.type ==')
PATHS = (
    "_dynamo/",
    "autograd/profiler",
    "distributed/checkpoint/",
    "distributed/device_mesh.py",
    "distributed/fsdp/_fully_shard/",
    "distributed/tensor/",
    "profiler/",
    "utils/checkpoint.py",
)


class Place(NamedTuple):
    """A line, by what stays the same when the lines around it change."""

    file: str
    function: str
    line: str


def functions_of(lines: list[int], source: str) -> list[str]:
    """Returns the qualified name of the innermost function or class around each line."""
    names = dict.fromkeys(lines, "")

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{outer}.{child.name}".removeprefix(".")
                for line in lines:
                    if child.lineno <= line <= (child.end_lineno or 0):
                        names[line] = name
            visit(child, name)

    visit(ast.parse(source), "")
    return [names[line] for line in lines]


def places_in(file: str, source: str) -> Iterator[Place]:
    is_on_path = file.startswith(PATHS)
    text = source.splitlines()
    found = [
        number
        for number, line in enumerate(text, 1)
        if ANYWHERE.search(line) or (is_on_path and ON_THESE_PATHS.search(line))
    ]
    if found:
        for number, function in zip(found, functions_of(found, source), strict=True):
            yield Place(file, function, " ".join(text[number - 1].split()))


def places_of_installed_torch() -> set[Place]:
    return {
        place
        for path in TORCH.rglob("*.py")
        for place in places_in(path.relative_to(TORCH).as_posix(), path.read_text("utf-8"))
    }


def places_of_table() -> Iterator[tuple[Place, list[str]]]:
    """Yields each place with the releases that have it."""
    for group in TABLE["group"]:
        for releases, places in group["places"].items():
            for place in places:
                known = _version.TORCH_RELEASES if releases == "*" else releases.split(", ")
                yield Place(*place), list(known)


class TestDeviceLists(TestCase):
    def test_table_has_the_places_of_the_installed_release_and_no_others(self):
        release = _version.release_of(str(torch.__version__))
        known = {place for place, releases in places_of_table() if release in releases}
        found = places_of_installed_torch()
        self.assertEqual(sorted(found - known), [], "places that the table lacks")
        self.assertEqual(sorted(known - found), [], f"places that torch {release} lacks")

    def test_each_place_is_of_a_supported_release_and_has_one_verdict(self):
        places = list(places_of_table())
        self.assertEqual(len({place for place, _ in places}), len(places))
        for _, releases in places:
            self.assertLessEqual(set(releases), set(_version.TORCH_RELEASES))
        for group in TABLE["group"]:
            self.assertIn(group["verdict"], VERDICTS)
            self.assertTrue(group["reason"])

    def test_new_list_is_found(self):
        source = 'class A:\n    def f(self, x):\n        return x.device.type in ("cuda", "xpu")\n'
        self.assertEqual(
            list(places_in("optim/new.py", source)),
            [Place("optim/new.py", "A.f", 'return x.device.type in ("cuda", "xpu")')],
        )


if __name__ == "__main__":
    run_tests()
