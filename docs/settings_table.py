"""Writes the table of settings into docs/settings.md: ``python docs/settings_table.py``.

The table is made from ``OPENREG_SETTINGS`` in openreg/setting.h and the declarations of the other
layers. It is part of the page, so that the Markdown file shows it without Sphinx; a test fails if
it is not current.
"""

import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent
PAGE = _DOCS / "settings.md"
_BEGIN = "<!-- settings: python docs/settings_table.py writes this table -->\n"
_END = "<!-- end of settings -->\n"

sys.path.insert(0, str(_DOCS / "_ext"))

import sources  # noqa: E402  (needs the path above)


def updated(page: str) -> str:
    """Returns the text of the page with the table of the sources.

    Raises:
        ValueError: The page does not have the two comments between which the table stands.
    """
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: expected the lines {_BEGIN!r} and {_END!r}")
    rows = [
        ("variable", "default", "allowed", "meaning"),
        ("---",) * 4,
        *(
            (f"`{one.variable}`", one.default, one.allowed, one.description)
            for one in sources.settings()
        ),
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{before}{begin}\n{table}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
