"""Counts the files and functions of the walks in docs/architecture.md, and checks their steps.

``python docs/walks.py`` writes the table of the counts. A walk is a table after the comment
``<!-- walk: NAME -->``: a file, a function that it defines, and the function of an earlier row
whose text names this one, or what enters it without its name.
"""

import ast
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_DOCS = Path(__file__).resolve().parent

sys.path[:0] = [str(_DOCS), str(_DOCS / "_ext")]

import sources  # noqa: E402  (needs the path above)
from cpp import without_comments  # noqa: E402
from page_table import PageTable  # noqa: E402

PLACE = PageTable(_DOCS / "architecture.md", "walks", "python docs/walks.py")
# What enters a function without its name: torch, to which it was given; a thread, as its first one;
# a caller that has a pointer, or an object of a type of another file.
ENTRIES = ("torch", "thread", "pointer")

_WALK = re.compile(r"^<!-- walk: (?P<name>[^\n]+) -->\n\n(?P<rows>(?:\|[^\n]*\n)+)", re.MULTILINE)
_ROW = re.compile(r"\| `(?P<file>[^`]+)` \| `(?P<function>[^`]+)` \| `?(?P<caller>[^`|]+?)`? \|")
# What may stand between the parameters of a function and its body.
_QUALIFIERS = re.compile(
    r"(?:\s*(?:const|noexcept|override|final|OPENREG_\w+(?:\([^()]*\))?|->\s*[\w:<>*&, ]+?))*"
    r"\s*(?::[^;{}]*(?:\{[^{}]*\}[^;{}]*?)*)?\{"
)


@dataclass(frozen=True)
class Step:
    """A function that a walk enters, and the function of the walk that it is entered from."""

    file: str
    function: str
    caller: str


def walks(page: str) -> dict[str, list[Step]]:
    """Returns the walks of a page by name.

    Raises:
        SourceError: A row of a walk is none of a step.
    """
    found: dict[str, list[Step]] = {}
    for walk in _WALK.finditer(page):
        steps = found.setdefault(walk["name"], [])
        for line in walk["rows"].splitlines()[2:]:
            row = _ROW.fullmatch(line)
            if row is None:
                raise sources.SourceError(f"walk {walk['name']!r}: expected a step, got {line!r}")
            steps.append(Step(row["file"], row["function"], row["caller"]))
    return found


def faults(steps: Sequence[Step]) -> list[str]:
    """Returns what of a walk is not so: a text for each fault."""
    texts: dict[str, str] = {}
    found = []
    for step in steps:
        name = step.function.rpartition("::")[2].rpartition(".")[2]
        if step.caller not in (*texts, *ENTRIES):
            found.append(f"{step.function}: {step.caller} is no step before it")
        elif step.caller in texts and not _names(texts[step.caller], name):
            found.append(f"{step.function}: the text of {step.caller} does not name it")
        try:
            texts[step.function] = text_of(step)
        except sources.SourceError as error:
            found.append(str(error))
    return found


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w~]){re.escape(name)}(?!\w)", text) is not None


def text_of(step: Step) -> str:
    """Returns the body of a function, of all of its name in the file.

    Raises:
        SourceError: There is no such file, or it does not define the function.
    """
    path = sources.ROOT / step.file
    code = sources.read(path)
    bodies = (
        _python_bodies(code, step.function)
        if path.suffix == ".py"
        else _cpp_bodies(without_comments(code), step.function)
    )
    text = "\n".join(bodies)
    if not text:
        raise sources.SourceError(f"{step.file}: expected a function {step.function}")
    return text


def _python_bodies(code: str, function: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            yield "\n".join(ast.unparse(one) for one in node.body)


def _cpp_bodies(code: str, function: str) -> Iterable[str]:
    scope, _, name = function.rpartition("::")
    if scope and not re.search(rf"\b(?:class|struct|namespace) [^;{{}}]*\b{scope}\b", code):
        name = function  # defined outside of the class
    for found in re.finditer(rf"(?<![\w.>]){re.escape(name)}\(", code):
        parameters = _closing(code, found.end() - 1)
        if (begin := _QUALIFIERS.match(code, parameters)) is not None:
            yield code[parameters : _closing(code, begin.end() - 1)]


def _closing(code: str, begin: int) -> int:
    """Returns the place behind the bracket that closes the one at a place."""
    opening = code[begin]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    for place in range(begin, len(code)):
        depth += (code[place] == opening) - (code[place] == closing)
        if depth == 0:
            return place + 1
    raise sources.SourceError(f"expected {closing!r} after {code[begin : begin + 40]!r}")


def table(page: str) -> str:
    """Returns the table of the counts: the files and the functions that each walk enters."""
    rows = [("walk", "files", "functions"), ("---",) * 3]
    for name, steps in walks(page).items():
        rows.append((name, str(len({step.file for step in steps})), str(len(steps))))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    """Writes the counts, and returns 1 after it has told of faults."""
    page = PLACE.page.read_text(encoding="utf-8")
    PLACE.write(table(page))
    found = [f"{name}: {text}" for name, steps in walks(page).items() for text in faults(steps)]
    for text in found:
        print(text, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
