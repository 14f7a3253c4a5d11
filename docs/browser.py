"""A headless Chromium, driven by Playwright.

It shows the built pages: ``docs/test_site.py`` opens all of them, and ``python docs/browser.py
FOLDER PAGE ...`` writes screenshots of pages of ``docs/_build`` at desktop and phone width, light
and dark. ``--find`` prints the browser's path, or fails. The browser is Debian's package
``chromium``, or another Chromium or Chrome on the ``PATH``; Playwright downloads none.
"""

import shutil
import sys
from pathlib import Path
from typing import Any, Self

from playwright.sync_api import ConsoleMessage, Page, Request, sync_playwright

__all__ = ["WIDTHS", "Browser", "find_browser"]

WIDTHS = {"desktop": 1440, "phone": 390}
_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
_TIMEOUT_MS = 60_000


def find_browser() -> str | None:
    """Returns the path of a browser, or None if none is installed."""
    return next((path for path in map(shutil.which, _NAMES) if path), None)


class Browser:
    """One page of a browser.

    Attributes:
        problems: what went wrong on the page since it was opened: exceptions, messages on the
            console, requests that failed.
    """

    def __init__(self, path: str) -> None:
        """Starts the browser. It is a context manager, which ends it."""
        self.problems: list[str] = []
        self._pages: dict[tuple[int, bool], Page] = {}
        self._playwright = sync_playwright().start()
        options = ["--allow-file-access-from-files", "--disable-gpu"]
        self._browser = self._playwright.chromium.launch(
            executable_path=path, args=options, chromium_sandbox=False
        )
        self.show(WIDTHS["desktop"])

    def __enter__(self) -> Self:
        """Returns the browser."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the browser."""
        self._browser.close()
        self._playwright.stop()

    def show(self, width: int, *, is_dark: bool = False) -> None:
        """Sets the width of the page, in pixels, and the color scheme that the system prefers."""
        if (width, is_dark) not in self._pages:
            self._pages[width, is_dark] = self._new_page(width, is_dark)
        self._page = self._pages[width, is_dark]

    def open(self, url: str) -> None:
        """Opens a page and waits until it has loaded."""
        self.problems.clear()
        self._page.goto(url)

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, after it is awaited if it is a promise."""
        return self._page.evaluate(expression)

    def wait_for_address(self, url: str) -> None:
        """Waits until the page has led to another one, and this has loaded."""
        self._page.wait_for_url(url)

    def screenshot(self, *, is_whole: bool = False) -> bytes:
        """Returns a PNG of the visible part, or of the whole page."""
        return self._page.screenshot(full_page=is_whole)

    def _new_page(self, width: int, is_dark: bool) -> Page:
        is_phone = width < 700
        page = self._browser.new_page(
            viewport={"width": width, "height": 844 if is_phone else 1000},
            device_scale_factor=2 if is_phone else 1,
            is_mobile=is_phone,
            color_scheme="dark" if is_dark else "light",
        )
        page.set_default_timeout(_TIMEOUT_MS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note_message)
        page.on("requestfailed", self._note_failure)
        return page

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _note_failure(self, request: Request) -> None:
        # A page that is left has requests under way, which the browser ends.
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"{request.url}: {request.failure}")


def main() -> None:
    """Writes screenshots, or finds the browser."""
    path = find_browser()
    if sys.argv[1:] == ["--find"]:
        print(path or "no browser is installed: apt-get install chromium")
        raise SystemExit(path is None)
    if path is None or len(sys.argv) < 3:
        raise SystemExit(__doc__)
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    site = Path(__file__).resolve().parent / "_build"
    with Browser(path) as browser:
        for page in sys.argv[2:]:
            for kind, width in WIDTHS.items():
                for is_dark in (False, True):
                    browser.show(width, is_dark=is_dark)
                    browser.open((site / page).as_uri())
                    name = f"{Path(page).stem}-{kind}-{'dark' if is_dark else 'light'}.png"
                    (target / name).write_bytes(browser.screenshot(is_whole=True))
                    print(f"wrote {target / name}")


if __name__ == "__main__":
    main()
