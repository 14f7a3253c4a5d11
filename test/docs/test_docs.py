"""The documentation: its examples run, and its quotations and lists agree with the sources."""

import operator
import re
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
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

pytestmark = pytest.mark.sample(0.022)

_ROOT = Path(__file__).resolve().parents[2]
_DOCS = _ROOT / "docs"
_PAGES = [_ROOT / "README.md", *sorted(_DOCS.glob("*.md"))]
_COLUMN = 101  # characters of code
_RUNTIME = "third_party/openreg_runtime"
_SOURCE_SUFFIXES = {".c", ".cpp", ".h", ".py"}
_SOURCE_FOLDERS = ("csrc", "include", "torch_openreg", "third_party", "examples")
_BUILT_FOLDERS = {_ROOT / "torch_openreg" / "include"}

sys.path.insert(0, str(_DOCS / "_ext"))

sys.path.insert(0, str(_DOCS))

import quotations  # noqa: E402  (needs the path above)
import settings_table  # noqa: E402
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
        # tools/minimal.py runs those of a chip.
        pattern = r"^(<!-- (?:quotes|chip program).*\n)?```\{?(?:code-block\} )?python"
        for page in _PAGES:
            blocks = re.findall(pattern, page.read_text(), re.MULTILINE)
            self.assertEqual(
                blocks.count(""), len(_examples(page)), f"unmarked block in {page.name}"
            )

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


class TestFiles(OpenRegTestCase):
    """The pages as files, as a code host shows them."""

    # Links without a text, labels, and directives with text or code: only Sphinx shows them.
    UNREADABLE = (
        r"\[\]\((?:\w+\.md|#)[^)]*\)|^\([\w-]+\)=$"
        r"|^```\{(?:literalinclude|figure|code-block)\}"
    )

    @parametrize("page", [subtest(page, name=page.stem) for page in _PAGES])
    def test_page_reads_without_sphinx(self, page):
        found = re.findall(self.UNREADABLE, page.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(found, [])

    def test_what_only_sphinx_shows_is_found(self):
        for text in ("See [](memory.md#copies).", "(label)=", "```{figure} a.svg\n```"):
            self.assertRegex(text, self.UNREADABLE)
        for text in ("[Memory](memory.md)", "[](int64_t device) {", "```{source-table} x\n```"):
            self.assertNotRegex(text, self.UNREADABLE)

    def test_code_fits_its_column(self):
        # What docs/test_site.py measures in a browser; lines of output may be longer.
        wide = [
            f"{page.name}: {line}"
            for page in _PAGES[1:]
            for language, block in re.findall(
                r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
            )
            if language != "text"
            for line in block.splitlines()
            if len(line) > _COLUMN
        ]
        self.assertEqual(wide, [])

    def test_links_between_pages_lead_to_headings(self):
        """MyST checks those of the site; README's lead from a code host, too."""
        readme = (_ROOT / "README.md").read_text(encoding="utf-8")
        for path, anchor in re.findall(r"\]\((docs/\w+\.md)#([\w-]+)\)", readme):
            headings = re.findall(r"^#+ (.*)$", (_ROOT / path).read_text(), re.MULTILINE)
            self.assertIn(anchor, [one.lower().replace(" ", "-") for one in headings])

    def test_workflows_of_pages_are_yaml(self):
        pattern = r"^(<!-- quotes .*\n)?```yaml\n(.*?)^```$"
        for page in _PAGES:
            text = page.read_text(encoding="utf-8")
            for quoted, block in re.findall(pattern, text, re.MULTILINE | re.DOTALL):
                if not quoted:
                    self.assertIsInstance(yaml.safe_load(block), (dict, list), page.name)


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
    SOURCE = "csrc/core/GuardImpl.h"

    def quoted(self, what: str) -> str:
        page = quotations.updated(f"<!-- quotes {self.SOURCE}: {what} -->\n```c\nold\n```\n")
        return page.partition("```c\n")[2].removesuffix("```\n")

    @parametrize("page", [subtest(page, name=page.stem) for page in quotations.PAGES])
    def test_quoted_code_is_that_of_the_source(self, page):
        text = page.read_text(encoding="utf-8")
        self.assertEqual(text, quotations.updated(text), "python docs/quotations.py")
        marks = re.findall(r"^<!-- quotes ", text, re.MULTILINE)
        self.assertEqual(len(quotations.quotations(text)), len(marks), "a mark without a block")

    def test_every_marked_region_is_quoted(self):
        quoted = {
            (one.path, one.region)
            for page in quotations.PAGES
            for one in quotations.quotations(page.read_text(encoding="utf-8"))
        }
        self.assertGreater(len(quoted), 100)
        for path in _source_files():
            for region in sources.regions(path):
                self.assertIn((str(path.relative_to(_ROOT)), region), quoted)

    def test_lines_between_two_texts_are_quoted_without_their_indentation(self):
        text = self.quoted('from "void setDevice(" before "DeviceIndex deviceCount("')
        self.assertRegex(text, r"\Avoid setDevice\(.*;\nvoid uncheckedSetDevice\(.*;\n\Z")

    @parametrize(
        "what,error",
        [
            subtest(("absent", "one line with 'docs: absent', got 0"), name="region"),
            subtest(('from "absent" before "x"', "one line with 'absent', got 0"), name="text"),
            subtest(('from "void" before "absent"', "one line with 'void', got"), name="texts"),
            subtest(
                ('from "void setDevice(" before "absent"', "an end after .*, got none"), name="end"
            ),
        ],
    )
    def test_part_that_is_not_there_is_an_error(self, what, error):
        with self.assertRaisesRegex(sources.SourceError, f"{self.SOURCE}: expected {error}"):
            self.quoted(what)


class TestTables(OpenRegTestCase):
    def test_settings_table_is_that_of_the_library(self):
        documented = [
            (one.variable, one.default, one.allowed, one.description) for one in sources.settings()
        ]
        self.assertEqual(documented, [row[:4] for row in _C._settings()])

    def test_settings_table_in_the_page_is_that_of_the_sources(self):
        place = settings_table.PLACE
        page = place.page.read_text(encoding="utf-8")
        self.assertIn("| `OPENREG_DEVICE_COUNT` | 2 | an integer from 0 to 64 |", page)
        current = place.updated(page, settings_table.table())
        self.assertEqual(page, current, "python docs/settings_table.py")

    def test_page_without_the_place_of_a_table_is_an_error(self):
        place = settings_table.PLACE
        page = place.page.read_text(encoding="utf-8")
        for comment in ("<!-- settings: ", "<!-- end of settings"):
            with self.assertRaisesRegex(ValueError, "settings.md: expected the lines"):
                place.updated(page.replace(comment, "<!-- "), "")
        self.assertNotIn("| meaning |", place.updated(page, "another table\n"))

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

    def test_sizes_of_blocks_in_texts_are_those_of_the_allocator(self):
        before = torch.openreg.memory_allocated()
        x = torch.empty(1, dtype=torch.uint8, device="openreg")
        block_size = torch.openreg.memory_allocated() - before
        del x
        pages = [(_DOCS / name).read_text() for name in ("memory.md", "differences.md")]
        for text in (*pages, openreg.memory_allocated.__doc__):
            (size,) = re.findall(r"multiples? of\s(\d+)\sbytes", text)
            self.assertEqual(int(size), block_size)

    def test_sources_in_an_object_are_those_of_the_build(self):
        setup = (_ROOT / "setup.py").read_text(encoding="utf-8")
        (default,) = re.findall(r'environ\.get\("OPENREG_JOIN", "(\d+)"\)', setup)
        page = (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        self.assertIn(f"together, up to {default} at a time", page)

    def test_lines_of_minimal_are_those_of_its_sources(self):
        comments = {
            **dict.fromkeys((".cpp", ".h"), re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)),
            ".py": re.compile(r'^ *#[^\n]*|""".*?"""', re.MULTILINE | re.DOTALL),
        }
        minimal = _ROOT / "minimal"
        files = [minimal / "setup.py", *minimal.glob("csrc/**/*"), *minimal.glob("python/*/*")]
        lines = code = 0
        for path in files:
            if path.suffix in comments:
                text = path.read_text(encoding="utf-8")
                lines += len(text.splitlines())
                code_lines = comments[path.suffix].sub("", text).splitlines()
                code += sum(bool(line.strip()) for line in code_lines)
        readme = " ".join((_ROOT / "README.md").read_text(encoding="utf-8").split())
        self.assertIn(
            f"{round(code, -1)} lines of code, {round(lines, -2):,} with comments", readme
        )

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
instantiate_parametrized_tests(TestFiles)
instantiate_parametrized_tests(TestQuotations)
instantiate_parametrized_tests(TestTables)

if __name__ == "__main__":
    run_tests()
