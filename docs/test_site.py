"""Tests of the built pages: ``pytest docs/test_site.py`` after ``sphinx-build docs docs/_build``.

Links inside the site are always checked. The rendered pages are checked in a browser, at desktop
and phone width, light and dark; without a browser these tests are skipped.
"""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from browser import WIDTHS, Browser, find_browser

_SITE = Path(__file__).resolve().parent / "_build"
_PAGES = sorted(_SITE.glob("*.html"))
_NAMES = [page.name for page in _PAGES]
# Elements that stick out of the page, and that no ancestor scrolls.
_OVERFLOW = """
[...document.querySelectorAll('.content *')].filter(one => {
  if (one.getBoundingClientRect().right <= WIDTH + 1) return false;
  for (let up = one; up && !up.classList.contains('content'); up = up.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX)) return false;
  return one.getBoundingClientRect().width > 1;
}).slice(0, 3).map(one => one.tagName + ': ' + one.textContent.slice(0, 60))
"""
# Code of which only a part is visible.
_CLIPPED_CODE = """
[...document.querySelectorAll('.content pre')].filter(one => one.scrollWidth > one.clientWidth + 1)
  .map(one => one.textContent.slice(0, 60))
"""
_BROKEN_PICTURES = "[...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
# Blocks of code that no button copies.
_WITHOUT_BUTTON = """
[...document.querySelectorAll('.content .highlight')].filter(one => !one.querySelector('.copybtn'))
  .map(one => one.textContent.slice(0, 60))
"""
# Results arrive one by one; the page announces the last one.
_FOUND_PAGES = """
new Promise((resolve) => {
  const look = () => {
    const said = document.querySelector('#search-results p');
    if (said && /finished|did not match/.test(said.textContent))
      resolve([...document.querySelectorAll('ul.search li a')].map(one => one.href));
    else setTimeout(look, 20);
  };
  look();
})
"""


class _Page(HTMLParser):
    """The links of a page, and the names that links to it may have."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.names.add(value)
            elif value and (name == "src" or (name == "href" and tag in ("a", "link"))):
                self.links.append(value)


@pytest.fixture(scope="module")
def pages() -> dict[Path, _Page]:
    return {path: _Page(path) for path in _PAGES}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip("no browser is installed: apt-get install chromium")
    with Browser(path) as running:
        yield running


def test_the_site_is_built():
    assert "index.html" in _NAMES and "search.html" in _NAMES, "run sphinx-build docs docs/_build"


def test_links_inside_the_site_lead_somewhere(pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            url, fragment = urldefrag(link)
            if urlparse(url).scheme or url.startswith("//"):
                continue
            target = (path.parent / unquote(url.split("?")[0])).resolve() if url else path
            is_known = target.is_file() and (
                not fragment or target not in pages or unquote(fragment) in pages[target].names
            )
            if not is_known:
                broken.append(f"{path.name}: {link}")
    assert not broken


@pytest.mark.parametrize("name", _NAMES)
def test_page_opens_without_errors_and_fits(browser, name):
    for width in WIDTHS.values():
        for is_dark in (False, True):
            browser.show(width, is_dark=is_dark)
            browser.open((_SITE / name).as_uri())
            assert browser.problems == []
            assert browser.evaluate(_BROKEN_PICTURES) == []
            assert browser.evaluate(_OVERFLOW.replace("WIDTH", str(width))) == []


# Each has another arrangement of columns: see page.css.
@pytest.mark.parametrize("width", [1280, 1360, 1440])
def test_code_fits_its_column(browser, width):
    browser.show(width)
    clipped = {}
    for page in _PAGES:
        browser.open(page.as_uri())
        clipped[page.name] = browser.evaluate(_CLIPPED_CODE)
    assert {name: texts for name, texts in clipped.items() if texts} == {}


def test_code_has_a_button_that_copies_it(browser):
    browser.show(WIDTHS["desktop"])
    browser.open((_SITE / "guard.html").as_uri())
    assert browser.evaluate("document.querySelectorAll('.content .copybtn').length") > 0
    assert browser.evaluate(_WITHOUT_BUTTON) == []


def test_dark_pages_are_dark(browser):
    color = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    for is_dark in (False, True):
        browser.show(WIDTHS["desktop"], is_dark=is_dark)
        browser.open((_SITE / "index.html").as_uri())
        brightness = sum(browser.evaluate(color)[:3]) / 3
        assert (brightness < 60) if is_dark else (brightness > 200)


@pytest.mark.parametrize("words,page", [("record_stream", "memory.html"), ("gate", "testing.html")])
def test_search_finds(browser, words, page):
    browser.show(WIDTHS["desktop"])
    browser.open(f"{(_SITE / 'search.html').as_uri()}?q={words}")
    assert any(f"/{page}" in link for link in browser.evaluate(_FOUND_PAGES))
    assert browser.problems == []


def test_a_broken_page_is_noticed(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<div class='content'><img src='missing.png'><p style='width: 500px'>wide</p>"
        "<pre style='width: 50px; overflow: auto'>a line that is longer</pre></div>"
        "<script>console.error('a message'); undefined_function()</script>"
    )
    browser.show(WIDTHS["phone"])
    browser.open(bad.as_uri())
    problems = "\n".join(browser.problems)
    for expected in ("a message", "undefined_function", "missing.png"):
        assert expected in problems
    assert browser.evaluate(_BROKEN_PICTURES)
    assert browser.evaluate(_CLIPPED_CODE)
    assert browser.evaluate(_OVERFLOW.replace("WIDTH", str(WIDTHS["phone"])))
