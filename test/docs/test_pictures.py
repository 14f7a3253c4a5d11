"""The documentation's pictures are those that its scripts draw."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
    subtest,
)

pytestmark = pytest.mark.sample(0.22)

_DOCS = Path(__file__).resolve().parents[2] / "docs"

sys.path.insert(0, str(_DOCS))

import draw_house  # noqa: E402  (needs the path above)

_PICTURES = _DOCS / "_static"
_SCRIPTS = sorted(path.name for path in _DOCS.glob("draw_*.py"))
# A trace has times, which no two runs share.
_REPEATABLE = [name for name in _SCRIPTS if name != "draw_trace.py"]
_DRAWN_BY_HAND = {"architecture.svg", "sanitizer.svg"}


def _environment():
    ours = ("OPENREG_", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


class TestPictures(OpenRegTestCase):
    @parametrize("script", [subtest(name, name=Path(name).stem) for name in _REPEATABLE])
    def test_script_draws_the_pictures_of_the_pages(self, script):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, _DOCS / script, folder], env=_environment(), check=True)
            drawn = sorted(Path(folder).iterdir())
            self.assertTrue(drawn)
            for picture in drawn:
                self.assertEqual(
                    picture.read_text(),
                    (_PICTURES / picture.name).read_text(),
                    f"{picture.name} is not up to date: python docs/{script}",
                )

    def test_house_has_an_arrow_or_a_way_for_each_include(self):
        graph = draw_house.uses()
        arrows = draw_house.reduced(graph)
        self.assertEqual(graph["memory"], {"core", "runtime"})
        picture = (_PICTURES / "house.svg").read_text()
        drawn = re.findall(r"<title>(\w+) includes (\w+)</title>", picture)
        self.assertEqual(
            sorted(drawn), sorted((name, one) for name, others in arrows.items() for one in others)
        )
        ways = {name: set(others) for name, others in arrows.items()}
        for _ in range(len(graph)):
            ways = {name: others.union(*map(ways.get, others)) for name, others in ways.items()}
        for name, others in graph.items():
            self.assertEqual(others - ways[name], set(), name)

    def test_house_shows_a_new_include(self):
        graph = draw_house.uses()
        graph["serialization"].add("random")
        self.assertEqual(draw_house.reduced(graph)["serialization"], {"random"})

    def test_trace_has_the_rows_and_arrows_of_the_picture(self):
        result = run_program(
            f"import sys; sys.path.insert(0, {str(_DOCS)!r}); import draw_trace; "
            "print(draw_trace._draw(draw_trace._last_step(draw_trace._record())))"
        )
        for element in ('font-weight="bold">([^<]+?)[ 0-9]*(?:\\(default\\))?<', "(marker-end)"):
            self.assertEqual(
                re.findall(element, result.stdout),
                re.findall(element, (_PICTURES / "trace.svg").read_text()),
            )

    def test_every_picture_is_drawn_by_a_script_and_shown(self):
        scripts = "".join((_DOCS / name).read_text() for name in _SCRIPTS)
        pages = "".join(page.read_text() for page in _DOCS.glob("*.md"))
        for picture in _PICTURES.glob("*.svg"):
            self.assertIn(f"_static/{picture.name}", pages)
            if picture.name not in _DRAWN_BY_HAND:
                self.assertIn(f'"{picture.stem}', scripts)


instantiate_parametrized_tests(TestPictures)

if __name__ == "__main__":
    run_tests()
