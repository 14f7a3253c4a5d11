"""The documentation: its examples run, and its quotations and lists agree with the sources."""

import operator
import re
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_program,
    run_tests,
    subtest,
)

from torch_openreg import _C, cpp_extension, openreg, testing

_ROOT = Path(__file__).resolve().parents[2]
_DOCS = _ROOT / "docs"
_PAGES = [_ROOT / "README.md", *sorted(_DOCS.glob("*.md"))]
_RUNTIME = "third_party/openreg_runtime"
_SOURCE_SUFFIXES = {".c", ".cpp", ".h", ".py"}
_SOURCE_FOLDERS = ("csrc", "include", "torch_openreg", "third_party", "examples")
_BUILT_FOLDERS = {_ROOT / "torch_openreg" / "include"}

sys.path.insert(0, str(_DOCS / "_ext"))

sys.path.insert(0, str(_DOCS))

import settings_table  # noqa: E402  (needs the path above)
import sources  # noqa: E402
import tiers  # noqa: E402


@dataclass(frozen=True)
class Example:
    """A program in a page.

    `<!-- program -->` in the line before a Python block marks one; `# Run with NAME=value ...`, as
    its first line, gives it environment variables; `<!-- program fails: TEXT -->` marks a program
    that ends with an error and prints the text. `<!-- prints -->` and a text block after it are the
    output of the program, run as train.py.
    """

    page: Path
    line: int
    settings: dict[str, str]
    error: str
    code: str
    output: str | None = None

    @property
    def name(self) -> str:
        return f"{self.page.stem.lower()}_line_{self.line}"


def _examples(page: Path) -> list[Example]:
    text = page.read_text(encoding="utf-8")
    pattern = (
        r"^<!-- program(?: fails: ([^\n]*?))? -->\n```python\n"
        r"((?:# Run with ([^\n]*)\n)?.*?)^```$"
        r"(?:\n\n<!-- prints -->\n```text\n(.*?)^```$)?"
    )
    return [
        Example(
            page=page,
            line=text.count("\n", 0, found.start(2)) + 1,
            settings=dict(one.split("=") for one in (found[3] or "").split()),
            error=found[1] or "",
            code=found[2],
            output=found[4],
        )
        for found in re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
    ]


_EXAMPLES = [example for page in _PAGES for example in _examples(page)]


@dataclass(frozen=True)
class Quotation:
    """A part of a source that a page includes."""

    page: Path
    source: Path
    options: dict[str, str]


def _quotations(page: Path) -> list[Quotation]:
    text = page.read_text(encoding="utf-8")
    return [
        Quotation(
            page,
            (page.parent / found[1]).resolve(),
            {
                key: value.strip().removeprefix('"').removesuffix('"').replace('\\"', '"')
                for key, value in re.findall(r"^:([\w-]+):(.*)$", found[2], re.MULTILINE)
            },
        )
        for found in re.finditer(
            r"^```\{literalinclude\} (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        )
    ]


_QUOTATIONS = [quotation for page in _PAGES for quotation in _quotations(page)]


def _source_files() -> list[Path]:
    return [
        path
        for folder in _SOURCE_FOLDERS
        for path in sorted((_ROOT / folder).rglob("*"))
        if path.suffix in _SOURCE_SUFFIXES
        and "build" not in path.parts
        and not _BUILT_FOLDERS & {*path.parents}
    ]


class TestExamples(OpenRegTestCase):
    @parametrize("example", [subtest(example, name=example.name) for example in _EXAMPLES])
    def test_example_runs(self, example):
        if example.error:
            result = run_program(example.code, example.settings, expect_success=False)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(example.error, result.stderr)
        elif example.settings:  # for a process that has not imported torch
            run_program(example.code, example.settings)
        else:
            run_child(example.code)

    @parametrize(
        "example", [subtest(one, name=one.name) for one in _EXAMPLES if one.output is not None]
    )
    def test_example_prints_what_the_page_says(self, example):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(example.code)
            run = "runpy.run_path('train.py', run_name='__main__')"
            code = f"import os, runpy; os.chdir({folder!r}); {run}"
            self.assertEqual(run_program(code, example.settings).stdout, example.output)

    def test_documentation_has_examples(self):
        self.assertGreater(len(_EXAMPLES), 0)

    def test_every_python_block_is_an_example_that_runs(self):
        for page in _PAGES:
            blocks = re.findall(r"^```\{?(?:code-block\} )?python", page.read_text(), re.MULTILINE)
            self.assertEqual(len(blocks), len(_examples(page)), f"unmarked block in {page.name}")

    def test_every_command_of_the_readme_is_run_by_ci(self):
        readme = (_ROOT / "README.md").read_text()
        names = re.findall(r"^<!-- command: (\S+) -->\n```sh$", readme, re.MULTILINE)
        self.assertEqual(len(names), readme.count("```sh"), "unmarked commands")
        run = re.findall(
            r"readme_command (\w+)$", (_ROOT / ".ci" / "run").read_text(), re.MULTILINE
        )
        self.assertEqual(names, run)

    def test_readme_is_short(self):
        self.assertLess(len((_ROOT / "README.md").read_text().splitlines()), 130)


class TestChapters(OpenRegTestCase):
    # Pages about no part of the code: guides, lists, and what is about all parts.
    OTHERS = frozenset(
        {
            *("api", "bring_up", "changes", "differences", "ecosystem", "found_with_it", "gallery"),
            *("debugging", "from_pytorch_openreg", "glossary", "index", "limits", "mapping"),
            *("own_kernels", "start", "test_suites", "troubleshooting", "versions"),
        }
    )

    def problem_of(self, text: str) -> str | None:
        """What the beginning of a chapter lacks."""
        beginning = text.partition("\n\n")[2].partition("\n\n")[0].replace("\n", " ")
        words = re.sub(r"`[^`]*`", "", beginning)
        if not re.match(r"This chapter .*\b(core|extras?)\b", words):
            return "expected 'This chapter', and whether it is about the core or an extra"
        if not re.search(r"\b(code|examples)\b", words):
            return "expected where its code is"
        paths = re.findall(r"`([\w./]+(?:/|\.\w+))`", beginning)
        missing = [
            path
            for path in paths
            if not any((root / path).exists() for root in (_ROOT, _ROOT / _RUNTIME))
        ]
        return f"expected paths, got {missing or paths}" if missing or not paths else None

    def test_chapter_begins_with_its_part_and_its_code(self):
        pages = {page.stem: page.read_text() for page in _DOCS.glob("*.md")}
        self.assertEqual(self.OTHERS - set(pages), set())
        for name in sorted(set(pages) - self.OTHERS):
            self.assertIsNone(self.problem_of(pages[name]), name)
        for name in self.OTHERS:
            self.assertIsNotNone(self.problem_of(pages[name]), f"{name}: is a chapter")

    def test_beginning_that_lacks_something_is_found(self):
        good = "# T\n\nThis chapter describes a part of the core. Its code is in `csrc/core/`.\n\nx"
        self.assertIsNone(self.problem_of(good))
        for old, new in (("of the core", ""), ("csrc/core/", "csrc/cores/"), ("Its code", "It")):
            self.assertIsNotNone(self.problem_of(good.replace(old, new)), new)


class TestReference(OpenRegTestCase):
    def test_reference_has_every_public_name(self):
        page = (_DOCS / "api.md").read_text()
        modules = {"": openreg, "testing": testing, "cpp_extension": cpp_extension}
        for name in ("amp", "comm", "profiler", "sanitizer"):
            modules[name] = getattr(openreg, name)
        for place, module in modules.items():
            names = [
                one for one in module.__all__ if not isinstance(getattr(module, one), ModuleType)
            ]
            missing = [
                one for one in names if not re.search(rf"[.`]{one}(`|$)", page, re.MULTILINE)
            ]
            self.assertEqual(missing, [], f"docs/api.md, {place}")
        for name in re.findall(r"^\.\. auto\w+:: torch\.openreg\.(\S+)", page, re.MULTILINE):
            self.assertIsNotNone(operator.attrgetter(name)(openreg), name)


class TestQuotations(OpenRegTestCase):
    def test_documentation_quotes_sources(self):
        self.assertGreater(len(_QUOTATIONS), 0)

    def test_quoted_region_is_marked_once_and_ends(self):
        for quotation in _QUOTATIONS:
            where = f"{quotation.page.name}: {quotation.source}"
            self.assertTrue(quotation.source.is_file(), where)
            start = quotation.options.get("start-after") or quotation.options.get("start-at")
            end = quotation.options.get("end-before")
            self.assertTrue(start and end, f"{where}: expected a start and an end")
            lines = quotation.source.read_text(encoding="utf-8").splitlines()
            starts = [number for number, line in enumerate(lines) if start in line]
            self.assertEqual(len(starts), 1, f"{where}: lines with {start!r}")
            self.assertTrue(
                any(end in line for line in lines[starts[0] + 1 :]), f"{where}: no {end!r}"
            )

    def test_every_marked_region_is_quoted(self):
        quoted = {
            (quotation.source, quotation.options.get("start-after")) for quotation in _QUOTATIONS
        }
        for path in _source_files():
            for region in sources.regions(path):
                self.assertIn((path, f"docs: {region}"), quoted)


class TestTables(OpenRegTestCase):
    def test_settings_table_is_that_of_the_library(self):
        documented = [
            (one.variable, one.default, one.allowed, one.description) for one in sources.settings()
        ]
        self.assertEqual(documented, [row[:4] for row in _C._settings()])

    def test_settings_table_in_the_page_is_that_of_the_sources(self):
        page = settings_table.PAGE.read_text(encoding="utf-8")
        self.assertIn("| `OPENREG_DEVICE_COUNT` | 2 | an integer from 0 to 64 |", page)
        self.assertEqual(page, settings_table.updated(page), "python docs/settings_table.py")

    def test_error_table_is_that_of_the_library(self):
        documented = [(one.name, one.number, one.text) for one in sources.error_codes()]
        self.assertEqual(documented, _C._error_table())

    def test_every_operator_has_a_tier_and_every_tier_operators(self):
        counts = tiers.counts()
        self.assertEqual(set(counts), set(tiers.TIERS))
        self.assertEqual(
            counts.total(),
            sum(name.startswith("aten::") for name in torch._C._dispatch_get_all_op_names()),
        )

    @parametrize(
        "operator,tier",
        [
            subtest(("aten::add.Tensor", "generated"), name="generated"),
            subtest(("aten::empty_strided", "hand-written"), name="hand_written"),
            subtest(("aten::_linalg_eigvals", "fallback"), name="fallback"),
            subtest(("aten::_convolution", "fallback"), name="fallback_by_name"),
            subtest(("aten::matmul", "composite"), name="composite"),
            subtest(("aten::_cudnn_rnn", "no kernel"), name="no_kernel"),
        ],
    )
    def test_tier_of_an_operator(self, operator, tier):
        self.assertEqual(tiers.tier_of(operator), tier)

    def test_library_versions_are_those_of_the_extra(self):
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        pins = dict(one.split("==") for one in project["optional-dependencies"]["integration"])
        rows = re.findall(
            r"^\| `([\w-]+)`[^|]*\| ([\d.]+) \|",
            (_DOCS / "ecosystem.md").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        self.assertEqual(set(rows), set(pins.items()))

    def test_every_environment_variable_is_documented(self):
        documented = (_DOCS / "settings.md").read_text(encoding="utf-8") + " ".join(
            one.variable for one in sources.settings()
        )
        for path in _source_files():
            for variable in re.findall(r'"(OPENREG_[A-Z_]+)"', path.read_text(encoding="utf-8")):
                self.assertIn(variable, documented, f"{path.relative_to(_ROOT)}")


instantiate_parametrized_tests(TestExamples)
instantiate_parametrized_tests(TestTables)

if __name__ == "__main__":
    run_tests()
