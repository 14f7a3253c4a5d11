"""Writes the quoted parts of the sources into the pages: ``python docs/quotations.py``.

A page quotes a source in a code block, so that the Markdown file shows it without Sphinx. The
comment before the block names what is quoted: the region between the marks ``docs: NAME`` and
``docs: end``, or the lines from the one with a text to the one before another::

    <!-- quotes csrc/core/Stream.cpp: stream-from-pool -->
    <!-- quotes csrc/hooks/Hooks.h: from "getDefaultGenerator(" before "}" -->

Common indentation is removed. A test fails if a block is not what its source says.
"""

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

_DOCS = Path(__file__).resolve().parent
PAGES = [_DOCS.parent / "README.md", *sorted(_DOCS.glob("*.md"))]

sys.path.insert(0, str(_DOCS / "_ext"))

import sources  # noqa: E402  (needs the path above)

_BLOCK = re.compile(
    r"^(?P<head><!-- quotes (?P<path>\S+): "
    r'(?:(?P<region>[\w-]+)|from "(?P<first>[^\n]+)" before "(?P<end>[^\n]+)") -->\n```\w+\n)'
    r"(?P<text>.*?)(?P<tail>^```$)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Quotation:
    """A part of a source that a page shows: a region by its name, or lines by two texts."""

    path: str
    region: str
    first: str
    end: str

    def text(self) -> str:
        """Returns the part of the source.

        Raises:
            SourceError: The source has no such part, or several, or one that a block cannot show.
        """
        first, end = (
            (sources.mark(self.region), sources.mark("end"))
            if self.region
            else (re.compile(re.escape(self.first)), re.compile(re.escape(self.end)))
        )
        lines = sources.read(sources.ROOT / self.path).splitlines(keepends=True)
        starts = [number for number, line in enumerate(lines) if first.search(line)]
        expected = f"one line with {self.first or 'docs: ' + self.region!r}"
        if len(starts) != 1:
            raise sources.SourceError(f"{self.path}: expected {expected}, got {len(starts)}")
        start = starts[0] + (1 if self.region else 0)
        ends = [number for number in range(starts[0] + 1, len(lines)) if end.search(lines[number])]
        if not ends:
            raise sources.SourceError(f"{self.path}: expected an end after {expected}, got none")
        text = textwrap.dedent("".join(lines[start : ends[0]])).strip("\n")
        if "```" in text:
            raise sources.SourceError(f"{self.path}: expected no fence in what is quoted")
        return f"{text}\n"


def quotations(page: str) -> list[Quotation]:
    """Returns what a page quotes."""
    return [_quotation(block) for block in _BLOCK.finditer(page)]


def _quotation(block: re.Match[str]) -> Quotation:
    return Quotation(block["path"], *(block[name] or "" for name in ("region", "first", "end")))


def updated(page: str) -> str:
    """Returns the text of a page with the quoted parts as the sources have them."""
    return _BLOCK.sub(
        lambda block: f"{block['head']}{_quotation(block).text()}{block['tail']}", page
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
