"""A headless Chromium, controlled over its DevTools protocol through two pipes.

It shows the built pages: ``docs/test_site.py`` opens all of them, and ``python docs/browser.py
FOLDER PAGE ...`` writes screenshots of pages of ``docs/_build`` at desktop and phone width, light
and dark. ``--find`` prints the browser's path, or fails. It needs Debian's package ``chromium``, or
another Chromium or Chrome on the ``PATH``, and nothing else.
"""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

__all__ = ["WIDTHS", "Browser", "find_browser"]

WIDTHS = {"desktop": 1440, "phone": 390}
_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
_TIMEOUT_S = 60

Message = dict[str, Any]


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
        """Starts the browser with an empty page. It is a context manager, which ends it."""
        self.problems: list[str] = []
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._events: list[Message] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        browser_in, self._out = os.pipe()
        self._in, browser_out = os.pipe()
        options = (
            "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
            "--disable-background-networking --disable-component-update --hide-scrollbars "
            f"--allow-file-access-from-files --remote-debugging-pipe "
            f"--user-data-dir={self._profile.name} about:blank"
        )

        def use_as_3_and_4() -> None:
            # Copies first: either may be the number that the other is to have.
            first, second = os.dup(browser_in), os.dup(browser_out)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [path, *options.split()],
            preexec_fn=use_as_3_and_4,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_in)
        os.close(browser_out)
        targets = self._call("Target.getTargets", session=None)["targetInfos"]
        (page,) = [one for one in targets if one["type"] == "page"]
        self._session: str | None = self._call(
            "Target.attachToTarget", session=None, targetId=page["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        """Returns the browser."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Message:
        """Calls a method of the protocol for the page and returns its result."""
        return self._call(method, session=self._session, **parameters)

    def show(self, width: int, *, is_dark: bool = False) -> None:
        """Sets the width of the page, in pixels, and the color scheme that the system prefers."""
        is_phone = width < 700
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=844 if is_phone else 1000,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"},
            ],
        )

    def open(self, url: str) -> None:
        """Opens a page and waits until it has loaded."""
        self.problems.clear()
        self._events.clear()
        self.call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")
        self.evaluate("1")  # earlier messages of the page have arrived before this answer

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, after it is awaited if it is a promise."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"evaluate: {result['exceptionDetails']}")
        return result["result"].get("value")

    def screenshot(self, *, is_whole: bool = False) -> bytes:
        """Returns a PNG of the visible part, or of the whole page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        return base64.b64decode(picture["data"])

    def _call(self, method: str, *, session: str | None, **parameters: Any) -> Message:
        number = next(self._numbers)
        message: Message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: Message = answer["result"]
                return result

    def _wait_for(self, event: str) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not any(one["method"] == event for one in self._events):
            self._receive(deadline)

    def _receive(self, deadline: float) -> Message:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"the browser: expected an answer within {_TIMEOUT_S} s")
            chunk = os.read(self._in, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser: expected an answer, got the end of the pipe")
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: Message = json.loads(text)
        if "method" in message:
            self._events.append(message)
            self._note(message["method"], message["params"])
        return message

    def _note(self, method: str, event: Message) -> None:
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.problems.append(details.get("exception", details).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning"):
            self.problems.append(" ".join(str(one.get("value")) for one in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            entry = event["entry"]
            self.problems.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Network.loadingFailed" and not event.get("canceled"):
            self.problems.append(f"a {event['type']} was not loaded: {event['errorText']}")


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
