"""Tables that a program writes into a page, between two comments."""

from pathlib import Path

__all__ = ["PageTable"]


class PageTable:
    """The place of a table in a page."""

    def __init__(self, page: Path, name: str, command: str) -> None:
        """Names the place.

        Args:
            page: The file.
            name: What the comments call the table.
            command: The command that writes it.
        """
        self.page = page
        self._begin = f"<!-- {name}: {command} writes this table -->\n"
        self._end = f"<!-- end of {name} -->\n"

    def updated(self, text: str, table: str) -> str:
        """Returns the text of the page with another table.

        Raises:
            ValueError: The page does not have the two comments between which the table stands.
        """
        before, begin, rest = text.partition(self._begin)
        _, end, after = rest.partition(self._end)
        if not begin or not end:
            raise ValueError(f"{self.page}: expected the lines {self._begin!r} and {self._end!r}")
        return f"{before}{begin}\n{table}\n{end}{after}"

    def write(self, table: str) -> None:
        """Writes the table into the page."""
        self.page.write_text(self.updated(self.page.read_text("utf-8"), table), "utf-8")
