"""The report of a run of the kit: passed, failed and missing tests by chapter."""

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch_openreg.conformance.chapters import CHAPTERS, Chapter

__all__ = ["LOST", "Result", "lost_lines", "page_url", "terminal_lines", "to_html"]

# The beginning of the failure of each test that follows one from which the device does not recover.
LOST = "the device has not recovered from "

# Where the pages are in a clone; an installed package has none.
_FOLDER = Path(__file__).resolve().parents[2] / "docs"
_MAX_FAILURES = 20  # of a chapter, in the terminal


@dataclass(frozen=True)
class Result:
    """How a test ended.

    Attributes:
        chapter: The name of its chapter.
        test: The test's name, with its module and class.
        outcome: "passed", "failed" or "skipped".
        text: The reason of the failure or the missing feature, in one line.
        details: All that is known of a failure.
        cases: How many calls it compared with the CPU's.
    """

    chapter: str
    test: str
    outcome: str
    text: str = ""
    details: str = field(default="", repr=False)
    cases: int = 0


def page_url(chapter: Chapter, base: str | None = None) -> str | None:
    """Where a chapter's page is; None if it is not known.

    Args:
        chapter: The chapter.
        base: The address of a site, or a folder; None for the clone that the kit is part of.
    """
    if base is not None:
        return f"{base.rstrip('/')}/{chapter.page}.html"
    path = _FOLDER / f"{chapter.page}.md"
    return path.as_uri() if path.is_file() else None


def _page_name(chapter: Chapter) -> str:
    return f"docs/{chapter.page}.md"


def _page_link(chapter: Chapter, base: str | None) -> str:
    url = page_url(chapter, base)
    if url is None:
        return f"<code>{html.escape(_page_name(chapter))}</code>"
    return f'<a href="{html.escape(url)}">{html.escape(chapter.page)}</a>'


def _by_chapter(results: Sequence[Result]) -> dict[Chapter, list[Result]]:
    groups = {
        chapter: [one for one in results if one.chapter == chapter.name] for chapter in CHAPTERS
    }
    return {chapter: group for chapter, group in groups.items() if group}


def _counts(results: Sequence[Result]) -> Counter[str]:
    return Counter(one.outcome for one in results)


def _missing(results: Sequence[Result]) -> Mapping[str, int]:
    return Counter(one.text for one in results if one.outcome == "skipped")


def lost_lines(results: Sequence[Result]) -> list[str]:
    """Says once for each process from which test on the device did not work any more."""
    lost = Counter(one.text for one in results if one.text.startswith(LOST))
    return [f"{text}; {count} later tests fail by that" for text, count in lost.items()]


def terminal_lines(results: Sequence[Result]) -> list[str]:
    """The report as lines of text."""
    head = ("chapter", "passed", "failed", "missing", "cases", "how it is done")
    rows: list[tuple[str, ...]] = [head]
    for chapter, group in _by_chapter(results).items():
        counts = _counts(group)
        rows.append(
            (
                chapter.name,
                *(str(counts[outcome]) for outcome in ("passed", "failed", "skipped")),
                str(sum(one.cases for one in group)),
                _page_name(chapter),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1]]))
    for chapter, group in _by_chapter(results).items():
        failed = [one for one in group if one.outcome == "failed"]
        missing = _missing(group)
        if failed or missing or chapter.note:
            lines += ["", f"{chapter.name} (see {_page_name(chapter)})"]
        failed = [one for one in failed if not one.text.startswith(LOST)]  # a note has them
        lines += [f"  failed: {one.test}: {one.text}" for one in failed[:_MAX_FAILURES]]
        if len(failed) > _MAX_FAILURES:
            lines.append(f"  ... and {len(failed) - _MAX_FAILURES} others")
        lines += [f"  missing: {text} ({count} tests)" for text, count in missing.items()]
        if chapter.note:
            lines.append(f"  note: {chapter.note}")
    return lines


_STYLE = """
:root { color-scheme: light dark; --good: #2e7d32; --bad: #c62828; --none: #9e9e9e; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
.bar { display: flex; height: .8rem; min-width: 8rem; background: #8883; }
.bar span { display: block; }
.passed { background: var(--good); } .failed { background: var(--bad); }
.skipped { background: var(--none); }
li { overflow-wrap: anywhere; } pre { overflow-x: auto; font-size: 13px; background: #8881; }
pre { padding: .5rem; } code { font-size: 14px; }
"""


def to_html(
    results: Sequence[Result],
    title: str,
    facts: Mapping[str, str],
    base: str | None,
    notes: Sequence[str] = (),
) -> str:
    """The report as one page that needs no other file.

    Args:
        results: Of all tests.
        title: The page's title.
        facts: What was tested, and how: names and values.
        base: Where the pages of the documentation are; see page_url.
        notes: Notes that complete the numbers, such as an interruption of the run.
    """
    text = html.escape
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(title)}</title><style>{_STYLE}</style></head><body><h1>{text(title)}</h1>",
        "<ul>",
        *(f"<li>{text(name)}: <code>{text(value)}</code></li>" for name, value in facts.items()),
        "</ul>",
        *(f"<p><strong>{text(note)}</strong></p>" for note in notes),
        "<table><tr><th>chapter</th><th>passed</th><th>failed</th><th>missing</th><th>cases</th>",
        "<th></th><th>how it is done</th></tr>",
    ]
    groups = _by_chapter(results)
    for chapter, group in groups.items():
        counts = _counts(group)
        outcomes = ("passed", "failed", "skipped")
        bar = "".join(
            f'<span class="{one}" style="flex:{counts[one]}"></span>'
            for one in outcomes
            if counts[one]
        )
        cells = "".join(f"<td>{counts[one]}</td>" for one in outcomes)
        parts.append(
            f'<tr><td><a href="#{_anchor(chapter)}">{text(chapter.name)}</a></td>{cells}'
            f"<td>{sum(one.cases for one in group)}</td>"
            f'<td><div class="bar">{bar}</div></td>'
            f"<td>{_page_link(chapter, base)}</td></tr>"
        )
    parts.append("</table>")
    for chapter, group in groups.items():
        parts.append(f'<h2 id="{_anchor(chapter)}">{text(chapter.name)}</h2>')
        parts.append(f"<p>How it is done: {_page_link(chapter, base)}</p>")
        if chapter.note:
            parts.append(f"<p>Note: {text(chapter.note)}</p>")
        missing = _missing(group)
        if missing:
            parts.append("<h3>Missing</h3><ul>")
            parts += [f"<li>{text(why)} ({count} tests)</li>" for why, count in missing.items()]
            parts.append("</ul>")
        failed = [one for one in group if one.outcome == "failed"]
        if failed:
            parts.append("<h3>Failed</h3>")
        for one in failed:
            parts.append(
                f"<details><summary><code>{text(one.test)}</code> {text(one.text)}</summary>"
                f"<pre>{text(one.details)}</pre></details>"
            )
        passed = [one for one in group if one.outcome == "passed"]
        if passed:
            parts.append(f"<details><summary>{len(passed)} passed</summary><ul>")
            parts += [f"<li><code>{text(one.test)}</code></li>" for one in passed]
            parts.append("</ul></details>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _anchor(chapter: Chapter) -> str:
    return chapter.name.replace(" ", "-")
