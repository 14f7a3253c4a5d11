"""The page docs/from_pytorch_openreg.md: the names in its second column exist."""

import ctypes
import functools
import importlib
import inspect
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import torch
import torch._inductor.codegen.common
from source_tree import BACKEND, INCLUDE, LIBRARIES, ROOT, code_of, public_headers
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

_PAGE = ROOT / "docs" / "from_pytorch_openreg.md"

# How many C functions PyTorch's OpenReg has, and how many of them have the same signature here.
_C_FUNCTIONS = 35
_SAME_C_FUNCTIONS = 26

# What `<!-- names: KIND -->` before a table names the kind of its second column.
_KINDS = {"files", "python", "cpp", "cpp private", "c"}


def _tables() -> list[tuple[str, list[list[str]]]]:
    """Returns the marked tables of the page: their kind and the cells of each row."""
    text = _PAGE.read_text(encoding="utf-8")
    tables = []
    for kind, table in re.findall(r"^<!-- names: (.+) -->\n((?:\|.*\n)+)", text, re.MULTILINE):
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        ]
        tables.append((kind, rows[2:]))  # after the head and the rule below it
    return tables


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _ours(*kinds: str) -> list[str]:
    """Returns the names in the second column of the tables of some kinds, each once."""
    names = [
        name for kind, rows in _tables() if kind in kinds for row in rows for name in _names(row[1])
    ]
    return sorted(set(names))


def _code(paths: list[Path]) -> str:
    return "\n".join(code_of(path) for path in paths)


def _resolve(name: str) -> object:
    """Returns the object of a dotted Python name; imports modules as needed."""
    parts = name.split(".")
    value: object = importlib.import_module(parts[0])
    for position, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            importlib.import_module(".".join(parts[:position]))
        value = getattr(value, part)
    return value


def _class_body(code: str, name: str) -> str:
    """Returns what is between the braces of a class; "" if it is not there."""
    found = re.search(rf"\b(?:class|struct)\b[^;{{]*\b{name}\b[^;{{]*\{{", code)
    if found is None:
        return ""
    depth, end = 1, found.end()
    while depth > 0 and end < len(code):
        depth += {"{": 1, "}": -1}.get(code[end], 0)
        end += 1
    return code[found.end() : end]


@cache
def _exported_functions() -> set[str]:
    output = subprocess.run(
        ["nm", "-D", "--defined-only", LIBRARIES["libopenreg.so"]],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {line.split()[-1] for line in output.splitlines()}


class TestNames(TestCase):
    def test_every_table_has_a_kind_and_every_kind_a_table(self):
        text = _PAGE.read_text(encoding="utf-8")
        marked = len(re.findall(r"^\| PyTorch's OpenReg \| here \|", text, re.MULTILINE))
        self.assertEqual(len(_tables()), marked)
        self.assertEqual({kind for kind, _ in _tables()}, _KINDS)

    def test_rows_have_three_cells_and_a_name_or_none_in_each_of_the_first_two(self):
        for _, rows in _tables():
            for row in rows:
                self.assertEqual(len(row), 3, msg=f"{row}")
                for cell in row[:2]:
                    self.assertTrue(_names(cell) or cell == "none", msg=f"{row}")

    @parametrize("name", _ours("files"))
    def test_file_exists(self, name):
        path = ROOT / name
        self.assertTrue(path.is_dir() if name.endswith("/") else path.is_file(), msg=name)

    @parametrize("name", _ours("python"))
    def test_python_name_resolves(self, name):
        if name.startswith('"'):
            self.assertIn(name.strip('"'), torch._dynamo.list_backends(exclude_tags=()))
            return
        self.assertTrue(name.startswith(("torch.openreg.", "torch.ops.openreg.", "torch_openreg.")))
        _resolve(name)

    @parametrize("name", _ours("cpp"))
    def test_cpp_name_is_in_a_public_header(self, name):
        self._check_cpp(name, sorted(INCLUDE.rglob("*.h")))

    @parametrize("name", _ours("cpp private"))
    def test_private_cpp_name_is_in_the_sources(self, name):
        self._check_cpp(name, sorted([*BACKEND.rglob("*.h"), *BACKEND.rglob("*.cpp")]))

    def _check_cpp(self, name: str, paths: list[Path]) -> None:
        """Checks that a file declares the name, in its namespace and class."""
        if name.startswith("OPENREG_"):
            self.assertRegex(_code(paths), rf"#define {name}\b")
            return
        namespace, _, rest = name.partition("::openreg::")
        self.assertIn(namespace, ("at", "c10"), msg=name)
        *owners, last = rest.split("::")
        declared = re.compile(
            # A call is none: it follows a dot, an arrow or a return.
            rf"(?<![.>\w])(?<!return ){re.escape(last)}\s*\("
            rf"|\b(?:class|struct)\b[^;{{]*\b{re.escape(last)}\b"
            rf"|\busing (?:\w+::)+{re.escape(last)};"
        )
        for path in paths:
            code = code_of(path)
            if re.search(rf"\bnamespace {namespace}::openreg\b", code):
                for owner in owners:
                    code = _class_body(code, owner)
                if declared.search(code):
                    return
        self.fail(f"{name}: expected a declaration")

    @parametrize("name", _ours("c"))
    def test_c_name_is_exported_or_declared(self, name):
        if name in _exported_functions():
            return
        headers = _code(public_headers())
        self.assertNotRegex(headers, rf"\bOPENREG_API\b[^;(]*\b{name}\(", msg="not exported")
        self.assertRegex(headers, rf"\b{name}\b")

    def test_c_functions_are_counted_as_the_page_says(self):
        functions = next(rows for kind, rows in _tables() if kind == "c")
        self.assertEqual(len(functions), _C_FUNCTIONS)
        theirs = [_names(row[0]) for row in functions]
        self.assertEqual([len(names) for names in theirs], [1] * _C_FUNCTIONS)
        same = [row for row in functions if _names(row[0]) == _names(row[1])]
        self.assertEqual(len(same), _SAME_C_FUNCTIONS)
        self.assertIn(
            f"has {_C_FUNCTIONS} C functions. This runtime has {_SAME_C_FUNCTIONS} of them",
            _PAGE.read_text(encoding="utf-8"),
        )


def _marked_rows(page: str, mark: str) -> list[list[str]]:
    """Returns the cells of the table that `<!-- MARK -->` precedes in a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.search(rf"^<!-- {mark} -->\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert found is not None, f"{page}: expected a table marked {mark!r}"
    return [line.strip("|").split("|") for line in found[1].splitlines()[2:]]


class TestHeadings(TestCase):
    """The page has a row for each heading of PyTorch's pages on accelerators."""

    HEADINGS = tomllib.loads((ROOT / "test" / "docs" / "accelerator_headings.toml").read_text())

    def test_pages_are_those_of_the_list_in_its_order(self):
        text = _PAGE.read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"^<!-- headings: (\S+) -->$", text, re.M), [*self.HEADINGS])
        (count,) = re.findall(r"has (\d+) pages for authors of accelerators", text)
        self.assertEqual(int(count), len(self.HEADINGS))

    @parametrize("page", [subtest(page, name=page.partition(".")[0]) for page in HEADINGS])
    def test_rows_are_the_headings_of_the_page(self, page):
        rows = [
            [cell.strip() for cell in row]
            for row in _marked_rows("from_pytorch_openreg.md", f"headings: {re.escape(page)}")
        ]
        self.assertEqual([heading for heading, _ in rows], self.HEADINGS[page])
        for heading, here in rows:
            self.assertRegex(here, r"\]\(|`test/|`torch_openreg/|`csrc/|^none: ", msg=heading)


class TestChapters(TestCase):
    """Tables of other pages that follow PyTorch's pages on accelerators."""

    def test_required_operators_are_registered_in_the_files_named(self):
        rows = _marked_rows("operators.md", "operators")
        self.assertEqual(len(rows), 12)
        for operator, _, file in rows:
            (name,), (source,) = _names(operator), _names(file)
            text = (BACKEND / "aten" / "ops" / source).read_text(encoding="utf-8")
            self.assertIn(f'm.impl("{name}", ', text)

    def test_operations_of_the_distributed_backend_are_overridden(self):
        code = code_of(BACKEND / "extras" / "distributed" / "ProcessGroupOCCL.h")
        overridden = set(re.findall(r"\b(\w+)\([^;{}]*?\)[^;{}()]*\boverride\b", code))
        names = [
            name for row in _marked_rows("distributed.md", "operations") for name in _names(row[1])
        ]
        self.assertEqual(len(names), 5 + 10 + 3)
        self.assertFalse(set(names) - overridden)

    @parametrize(
        "page,mark,source,count",
        [
            subtest(("memory.md", "allocator", "memory/Allocator.cpp", 10), name="allocator"),
            subtest(("profiler.md", "stubs", "extras/profiler/ProfilerStubs.cpp", 8), name="stubs"),
        ],
    )
    def test_functions_of_an_interface_are_overridden(self, page, mark, source, count):
        code = code_of(BACKEND / source)
        names = [name for row in _marked_rows(page, mark) for name in _names(row[0])]
        self.assertEqual(len(names), count)
        for name in names:
            self.assertRegex(code, rf"\b{name}\([^;{{}}]*?\)[^;{{}}()]*\boverride\b")

    @parametrize(
        "mark,owner",
        [
            subtest(("interface", "dynamo._interface.OpenRegInterface"), name="interface"),
            subtest(
                ("overrides", "extras.inductor._backend.OpenRegDeviceOpOverrides"), name="overrides"
            ),
        ],
    )
    def test_functions_for_compilers_are_overridden(self, mark, owner):
        our_class = _resolve(f"torch_openreg.{owner}")
        for row in _marked_rows("compile.md", mark):
            for name in _names(row[0]):
                *outer, function = name.split(".")
                value = functools.reduce(getattr, outer, our_class)
                self.assertIn(function, vars(value), msg=name)

    def test_optional_arguments_of_the_page_are_those_of_inductor(self):
        text = (ROOT / "docs" / "compile.md").read_text(encoding="utf-8")
        named = re.findall(r"\(`(device_\w+)`\)", text)
        function = torch._inductor.codegen.common.register_backend_for_device
        optional = [
            name
            for name, one in inspect.signature(function).parameters.items()
            if one.default is not inspect.Parameter.empty
        ]
        self.assertEqual(sorted(named), sorted(optional))

    def test_macros_and_functions_of_the_architecture_page_are_in_the_sources(self):
        text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
        step = re.search(
            r"^2\. `import torch_openreg\._C`(.*?)^3\. ", text, re.MULTILINE | re.DOTALL
        )
        assert step is not None
        registered = [
            name.split("::")[-1]
            for name in _names(step[1].split("torch's macros")[0])
            if re.search(r"^(?:c10|at)::|^OPENREG_", name)
        ]
        self.assertEqual(len(registered), 5)
        code = _code([*BACKEND.rglob("*.h"), *BACKEND.rglob("*.cpp")])
        for name in registered:
            self.assertRegex(code, rf"\b{name}\b")

    def test_single_test_of_the_contributing_page_exists(self):
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        (file, word) = re.findall(r"pytest (test/[\w/]+\.py) -k (\w+)`", text)[0]
        names = re.findall(r"def (test_\w+)", (ROOT / file).read_text(encoding="utf-8"))
        self.assertTrue([name for name in names if word in name], msg=f"{file} -k {word}")

    def test_test_files_of_the_contributing_page_exist(self):
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        for name in re.findall(r"`(?:test/)?(test_\w+\.py)`", text):
            self.assertTrue(sorted((ROOT / "test").rglob(name)), msg=name)


class TestSuccessAndFailure(TestCase):
    """The table "Success and failure", row by row, by the C interface itself."""

    def setUp(self):
        super().setUp()
        self.runtime = ctypes.CDLL(str(LIBRARIES["libopenreg.so"]))

    def call(self, function, *arguments):
        return getattr(self.runtime, function)(*arguments)

    def allocated(self, function, size_bytes):
        pointer = ctypes.c_void_p(1)
        self.assertEqual(self.call(function, ctypes.byref(pointer), ctypes.c_size_t(size_bytes)), 0)
        return pointer

    def created_event(self):
        event = ctypes.c_void_p()
        self.assertEqual(self.call("orEventCreate", ctypes.byref(event)), 0)
        return event

    @parametrize("function", ["orMalloc", "orMallocHost"])
    def test_size_of_0_gives_a_null_pointer(self, function):
        self.assertIsNone(self.allocated(function, 0).value)

    def test_copy_of_0_bytes_succeeds(self):
        device, host = self.allocated("orMalloc", 64), self.allocated("orMallocHost", 64)
        to_device = 1
        self.assertEqual(self.call("orMemcpy", device, host, ctypes.c_size_t(0), to_device), 0)

    def test_null_stream_is_the_default_stream(self):
        device, host = self.allocated("orMalloc", 64), self.allocated("orMallocHost", 64)
        size, to_device, event = ctypes.c_size_t(64), 1, self.created_event()
        self.assertEqual(self.call("orMemcpyAsync", device, host, size, to_device, None), 0)
        self.assertEqual(self.call("orEventRecord", event, None), 0)
        self.assertEqual(self.call("orStreamWaitEvent", None, event, 0), 0)
        self.assertEqual(self.call("orStreamSynchronize", None), 0)
        self.assertEqual(self.call("orStreamQuery", None), 0)
        stream = ctypes.c_void_p()
        self.assertEqual(self.call("orGetDefaultStream", ctypes.byref(stream), 0), 0)
        ids = [ctypes.c_ulonglong(99), ctypes.c_ulonglong(98)]
        self.assertEqual(self.call("orStreamGetId", None, ctypes.byref(ids[0])), 0)
        self.assertEqual(self.call("orStreamGetId", stream, ctypes.byref(ids[1])), 0)
        self.assertEqual(ids[0].value, ids[1].value)

    def test_null_pointer_is_unregistered_memory(self):
        attributes = (ctypes.c_int * 16)(*([7] * 16))
        self.assertEqual(self.call("orPointerGetAttributes", attributes, None), 0)
        unregistered, no_device = 0, -1
        self.assertEqual(list(attributes[:2]), [unregistered, no_device])

    @parametrize(
        "priority,expected",
        [subtest((-100, -1), name="high"), subtest((100, 0), name="low")],
    )
    def test_priority_out_of_range_is_clamped(self, priority, expected):
        stream, found = ctypes.c_void_p(), ctypes.c_int(99)
        self.assertEqual(
            self.call("orStreamCreateWithPriority", ctypes.byref(stream), 0, priority), 0
        )
        self.assertEqual(self.call("orStreamGetPriority", stream, ctypes.byref(found)), 0)
        self.assertEqual(found.value, expected)
        self.assertEqual(self.call("orStreamDestroy", stream), 0)

    def test_events_have_timing_by_default(self):
        start, end, elapsed_ms = self.created_event(), self.created_event(), ctypes.c_float(-1)
        for event in (start, end):
            self.assertEqual(self.call("orEventRecord", event, None), 0)
        self.assertEqual(self.call("orEventSynchronize", end), 0)
        self.assertEqual(self.call("orEventElapsedTime", ctypes.byref(elapsed_ms), start, end), 0)
        self.assertGreaterEqual(elapsed_ms.value, 0)

    def test_null_event_may_be_destroyed(self):
        self.assertEqual(self.call("orEventDestroy", None), 0)


instantiate_parametrized_tests(TestChapters)
instantiate_parametrized_tests(TestHeadings)
instantiate_parametrized_tests(TestNames)
instantiate_parametrized_tests(TestSuccessAndFailure)

if __name__ == "__main__":
    run_tests()
