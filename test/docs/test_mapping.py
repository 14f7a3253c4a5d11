"""The tables of docs/mapping.toml name what exists, all of it, and mistakes in them are found."""

import copy
import operator
import re
import subprocess
import sys
from pathlib import Path

import torch
from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests, subtest

import torch_openreg
from torch_openreg import _C, distributed, testing

_ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(_ROOT / "docs" / "_ext"))

import cpp  # noqa: E402  (needs the path above)
import mapping  # noqa: E402


def _rows(table):
    """All entries with their names."""
    yield from table["bindings"].items()
    for owner, rows in table["interfaces"].items():
        yield from ((f"{owner}::{name}", entry) for name, entry in rows.items())


def _planted(place, name, entry):
    """The tables with another entry; None removes it."""
    table = copy.deepcopy(mapping.table())
    rows = table
    for key in place:
        rows = rows[key]
    rows.pop(name, None)
    if entry is not None:
        rows[name] = entry
    return table


class TestMapping(OpenRegTestCase):
    def test_tables_are_right(self):
        self.assertEqual(mapping.problems(mapping.table()), [])

    def test_tables_have_every_binding_of_the_library(self):
        documented = {name.split(".")[0] for name in mapping.table()["bindings"]}
        built = {name for name in dir(_C) if not name.startswith("__")}
        self.assertEqual(documented, built)

    def test_entries_have_their_cells(self):
        table = mapping.table()
        for rows, count in (
            (table["bindings"], 3),
            *((r, 2) for r in table["interfaces"].values()),
        ):
            for name, entry in rows.items():
                self.assertEqual(len(mapping.cells(entry)), count, name)
                self.assertNotEqual(mapping.cells(entry)[0], "", name)

    def test_functions_of_the_runtime_are_exported(self):
        library = Path(torch_openreg.__file__).parent / "lib" / "libopenreg.so"
        output = subprocess.run(
            ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
        ).stdout
        exported = {line.split()[-1] for line in output.splitlines()} | {"stream lookup"}
        for name, entry in _rows(mapping.table()):
            self.assertEqual(set(mapping.names(mapping.cells(entry)[-1])) - exported, set(), name)
        self.assertEqual({one.name for one in cpp.runtime_api()} - exported, set())

    def test_names_of_the_package_resolve(self):
        modules = {
            "torch.openreg": torch.openreg,
            "torch_openreg.testing": testing,
            "torch_openreg.distributed": distributed,
        }
        pattern = rf"`({'|'.join(map(re.escape, modules))})\.([\w.]+)(?:\(\))?`"
        found = 0
        for name, entry in _rows(mapping.table()):
            for module, rest in re.findall(pattern, mapping.cells(entry)[0]):
                self.assertIsNotNone(operator.attrgetter(rest)(modules[module]), f"{module}.{rest}")
                found += 1
            for file in re.findall(r"`((?:test|torch_openreg)/[\w/]+\.py)`", entry):
                self.assertRegex((_ROOT / file).read_text(), rf"\b_C\.{name}\b", file)
        self.assertGreater(found, 150)

    def test_every_interface_is_shown(self):
        pages = "".join(page.read_text() for page in (_ROOT / "docs").glob("*.md"))
        for name in mapping.table()["interfaces"]:
            self.assertIn(f"```{{source-table}} interfaces {name}\n", pages)

    @parametrize(
        "place,name,entry,text",
        [
            subtest(
                (["bindings"], "_get_device", None, "_get_device: a binding of _C.pyi that has no"),
                name="binding_without_an_entry",
            ),
            subtest(
                (["bindings"], "_gone", "x | |", "_gone: an entry that is not a binding"),
                name="entry_without_a_binding",
            ),
            subtest(
                (["interfaces", "OpenRegGuardImpl"], "block", None, "OpenRegGuardImpl::block: a v"),
                name="virtual_function_without_an_entry",
            ),
            subtest(
                (["interfaces", "OpenRegGuardImpl"], "gone", "x |", "gone: an entry that is not a"),
                name="entry_without_a_virtual_function",
            ),
            subtest(
                (["python_only"], "is_tf32_supported", None, "torch.openreg.is_tf32_supported: no"),
                name="public_name_that_leads_nowhere",
            ),
            subtest(
                (["bindings"], "_get_device", "x | current_devices |", "does not mention current_"),
                name="function_that_is_not_bound",
            ),
            subtest(
                (
                    ["bindings"],
                    "_get_device",
                    "x | | orGone",
                    "the runtime does not declare orGone",
                ),
                name="function_that_the_runtime_lacks",
            ),
            subtest(
                (["bindings"], "_is_received_storage", "x | |", "neither the package nor a test"),
                name="function_without_users",
            ),
        ],
    )
    def test_mistake_is_found(self, place, name, entry, text):
        found = mapping.problems(_planted(place, name, entry))
        self.assertTrue([one for one in found if text in one], found)

    def test_new_virtual_function_is_seen_in_the_sources(self):
        text = (_ROOT / "csrc" / "core" / "GuardImpl.h").read_text()
        planted = text.replace(
            "bool queryStream(", "bool isNew(int x) const override;\n  bool queryStream("
        )
        self.assertNotEqual(planted, text)
        new = set(cpp.overrides_in(planted)) - set(cpp.overrides_in(text))
        self.assertEqual(new, {"OpenRegGuardImpl::isNew"})


instantiate_parametrized_tests(TestMapping)

if __name__ == "__main__":
    run_tests()
