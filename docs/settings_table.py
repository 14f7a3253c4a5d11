"""Writes the table of settings into docs/settings.md: ``python docs/settings_table.py``.

The table is made from ``OPENREG_SETTINGS`` in openreg/setting.h and the declarations of the other
layers. It is part of the page, so that the Markdown file shows it without Sphinx; a test fails if
it is not current.
"""

import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent

sys.path[:0] = [str(_DOCS), str(_DOCS / "_ext")]

import sources  # noqa: E402  (needs the path above)
from page_table import PageTable  # noqa: E402

PLACE = PageTable(_DOCS / "settings.md", "settings", "python docs/settings_table.py")


def table() -> str:
    """Returns the table of the sources."""
    rows = [
        ("variable", "default", "allowed", "meaning"),
        ("---",) * 4,
        *(
            (f"`{one.variable}`", one.default, one.allowed, one.description)
            for one in sources.settings()
        ),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    PLACE.write(table())
