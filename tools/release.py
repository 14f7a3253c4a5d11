"""Checks what a release needs: ``python tools/release.py v0.2.0``.

The tag has to be the version of ``torch_openreg/_version.py``, and CHANGELOG.md has to have a dated
section for it, below an empty one for later changes. Prints the section, which is the text of the
release. Without a tag, only prints what the tag has to be.
"""

import argparse
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ReleaseError", "Section", "main", "notes_of", "sections_of"]

_ROOT = Path(__file__).resolve().parent.parent
_VERSION: str = runpy.run_path(str(_ROOT / "torch_openreg" / "_version.py"))["__version__"]
_UNRELEASED = "Unreleased"
_NO_CHANGES = "No changes."


class ReleaseError(Exception):
    """Why this is no release, in one line."""


@dataclass(frozen=True)
class Section:
    """The changes of one version.

    Attributes:
        version: The version; ``Unreleased`` for what comes after the newest one.
        date: The date, or a text in place of it.
        text: The changes.
    """

    version: str
    date: str
    text: str


def sections_of(changelog: str) -> list[Section]:
    """Returns the sections of a changelog, in its order: the newest first."""
    parts = re.split(r"(?m)^## \[([^\]]+)\](?: - (.*))?$", changelog)[1:]
    return [
        Section(version, date or "", text.strip())
        for version, date, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]


def notes_of(tag: str, changelog: str) -> str:
    """Returns the text of the release that a tag is for.

    Args:
        tag: The name of the tag.
        changelog: The text of CHANGELOG.md.

    Raises:
        ReleaseError: The tag, the version and the changelog do not agree.
    """
    if tag != f"v{_VERSION}":
        raise ReleaseError(f"expected the tag v{_VERSION}, the version of the package, got {tag}")
    unreleased, newest = (*sections_of(changelog), *[Section("nothing", "", "")] * 2)[:2]
    if unreleased.version != _UNRELEASED or unreleased.text != _NO_CHANGES:
        raise ReleaseError(
            f"CHANGELOG.md: expected '## [{_UNRELEASED}]' with the text {_NO_CHANGES!r} first, got "
            f"[{unreleased.version}]: {unreleased.text[:60]!r}"
        )
    if newest.version != _VERSION or not re.fullmatch(r"\d{4}-\d\d-\d\d", newest.date):
        raise ReleaseError(
            f"CHANGELOG.md: expected '## [{_VERSION}] - YYYY-MM-DD' next, got "
            f"[{newest.version}] - {newest.date}"
        )
    return newest.text


def main() -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python tools/release.py", description=__doc__)
    parser.add_argument("tag", nargs="?", metavar="TAG", help="the name of the release's tag")
    options = parser.parse_args()
    if options.tag is None:
        print(f"v{_VERSION}")
        return 0
    try:
        print(notes_of(options.tag, (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    except ReleaseError as error:
        print(f"tools/release.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
