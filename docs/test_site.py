"""Tests of the built pages: ``pytest docs/test_site.py`` after ``sphinx-build docs docs/_build``.

Links inside the site are always checked. The rendered pages are checked in a browser, at desktop
and phone width, light and dark; without a browser these tests are skipped.
"""

import functools
import http.server
import json
import runpy
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from browser import WIDTHS, Browser, find_browser
from publish import publish

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


def test_plots_are_dark_on_dark_pages_and_terminals_always(browser):
    style = "getComputedStyle(document.querySelector(`img[src$='${name}.svg']`)).filter"
    for is_dark in (False, True):
        browser.show(WIDTHS["desktop"], is_dark=is_dark)
        browser.open((_SITE / "start.html").as_uri())
        plot, terminal = browser.evaluate(f"['schedules', 'suite'].map((name) => {style})")
        assert (plot != "none") == is_dark
        assert terminal == "none"


@pytest.mark.parametrize("words,page", [("record_stream", "memory.html"), ("gate", "testing.html")])
def test_search_finds(browser, words, page):
    browser.show(WIDTHS["desktop"])
    browser.open(f"{(_SITE / 'search.html').as_uri()}?q={words}")
    assert any(f"/{page}" in link for link in browser.evaluate(_FOUND_PAGES))
    assert browser.problems == []


def test_page_says_what_it_is_for(browser):
    browser.show(WIDTHS["desktop"])
    browser.open((_SITE / "start.html").as_uri())
    policy = runpy.run_path(str(_SITE.parents[1] / "torch_openreg" / "_version.py"))
    sidebar = browser.evaluate("document.querySelector('.sidebar-sticky').textContent").split()
    first, *_, last = policy["TORCH_RELEASES"]
    expected = f"torch_openreg {policy['__version__']} for torch {first} to {last}".split()
    assert sidebar[: len(expected)] == expected
    assert not browser.evaluate("document.querySelector('.version select')")


@pytest.fixture
def site(tmp_path) -> Iterator[tuple[Path, str]]:
    """A folder with several versions, and its address."""
    for ref in ("main", "v0.9.1", "v0.10.0"):
        publish(_SITE, tmp_path, ref)
    (tmp_path / "v0.9" / "limits.html").unlink()
    handler = functools.partial(_QuietHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_published_versions_are_listed_and_the_newest_release_is_first(site):
    folder, _ = site
    versions = json.loads((folder / "versions.json").read_text())
    assert versions == {"newest": "v0.10", "versions": ["latest", "v0.10", "v0.9"]}
    assert 'url=v0.10/"' in (folder / "index.html").read_text()
    assert not list(folder.glob("*/.doctrees"))


def test_page_is_published_again_and_another_ref_is_not(tmp_path):
    publish(_SITE, tmp_path, "v1.2.3")
    (tmp_path / "v1.2" / "old.html").touch()
    publish(_SITE, tmp_path, "v1.2.4")
    assert not (tmp_path / "v1.2" / "old.html").exists()
    for ref in ("v1.2", "fix", "1.2.3"):
        with pytest.raises(ValueError, match="expected main or a tag"):
            publish(_SITE, tmp_path, ref)


def test_choice_of_versions_leads_to_the_same_page_or_to_the_first_one(browser, site):
    _, address = site
    browser.show(WIDTHS["desktop"])
    choose = """
    new Promise((resolve) => {{
      const look = () => {{
        const choice = document.querySelector('.version select');
        if (!choice) return setTimeout(look, 20);
        resolve([[...choice.options].map(one => one.value), choice.value]);
        choice.value = {0!r};
        if ({0!r}) choice.dispatchEvent(new Event('change'));
      }};
      look();
    }})
    """
    for page, target in (("start.html", "start.html"), ("limits.html", "")):
        browser.open(f"{address}/v0.10/{page}")
        assert browser.evaluate(choose.format("v0.9")) == [["latest", "v0.10", "v0.9"], "v0.10"]
        browser.wait_for_address(f"{address}/v0.9/{target}")
    for version, has_note in (("v0.9", True), ("latest", True), ("v0.10", False)):
        browser.open(f"{address}/{version}/start.html")
        assert browser.evaluate(choose.format(""))[1] == version
        note = browser.evaluate("document.querySelector('.other-version')?.textContent")
        expected = f"These pages are of {version}. The newest release is v0.10."
        assert note == (expected if has_note else None)
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
