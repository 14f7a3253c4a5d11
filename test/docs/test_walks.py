"""The walks in docs/architecture.md: their steps are those of the sources."""

import sys
from pathlib import Path

from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests, subtest

_ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(_ROOT / "docs"))

import walks  # noqa: E402  (needs the path above)

sys.path.insert(0, str(_ROOT / "docs" / "_ext"))

import sources  # noqa: E402

PAGE = walks.PLACE.page.read_text(encoding="utf-8")
WALKS = walks.walks(PAGE)
STREAM = "third_party/openreg_runtime/src/queue/stream.cpp"
LAUNCH = walks.Step(STREAM, "Stream::launch", "pointer")


class TestWalks(OpenRegTestCase):
    @parametrize("name", [subtest(name, name=f"{i}") for i, name in enumerate(WALKS)])
    def test_steps_are_those_of_the_sources(self, name):
        self.assertGreater(len(WALKS[name]), 3)
        self.assertEqual(walks.faults(WALKS[name]), [])

    def test_every_walk_is_read(self):
        self.assertEqual(len(WALKS), PAGE.count("<!-- walk: "))
        steps = sum(len(steps) for steps in WALKS.values())
        self.assertEqual(steps, PAGE.count("\n| `") - self.rows_of_other_tables())

    def rows_of_other_tables(self):
        begin = PAGE.index("<!-- walk: ")
        end = PAGE.index("## The core and the extras")
        return PAGE[:begin].count("\n| `") + PAGE[end:].count("\n| `")

    def test_counts_are_those_of_the_walks(self):
        self.assertEqual(PAGE, walks.PLACE.updated(PAGE, walks.table(PAGE)), "python docs/walks.py")
        text = "<!-- walk: one -->\n\n| a | b | c |\n|---|---|---|\n"
        text += "| `x.cpp` | `f` | torch |\n| `x.cpp` | `g` | `f` |\n"
        self.assertIn("| one | 1 | 2 |\n", walks.table(text))
        with self.assertRaisesRegex(sources.SourceError, "walk 'one': expected a step"):
            walks.walks(f"{text}| x.cpp | `h` | `g` |\n")

    @parametrize(
        "step,fault",
        [
            subtest(
                (
                    walks.Step(STREAM, "Stream::vanish", "torch"),
                    "expected a function Stream::vanish",
                ),
                name="no_function",
            ),
            subtest((walks.Step("csrc/none.cpp", "f", "torch"), "expected a file"), name="no_file"),
            subtest(
                (walks.Step(STREAM, "Stream::wait", "Stream::launch"), "does not name it"),
                name="not_named",
            ),
            subtest(
                (walks.Step(STREAM, "Stream::submit", "Stream::finish"), "no step before it"),
                name="no_caller",
            ),
        ],
    )
    def test_wrong_step_is_found(self, step, fault):
        right = walks.Step(STREAM, "Stream::submit", "Stream::launch")
        self.assertEqual(walks.faults([LAUNCH, right]), [])
        [found] = walks.faults([LAUNCH, step])
        self.assertIn(fault, found)

    def test_text_of_a_function_is_its_body(self):
        text = walks.text_of(LAUNCH)
        self.assertIn("submit(submission", text)
        self.assertNotIn("take_failure", text)
        load = walks.text_of(walks.Step("torch_openreg/_loading.py", "load", "pointer"))
        self.assertIn("_set_up", load)
        self.assertNotIn("_choose_libraries", load)


instantiate_parametrized_tests(TestWalks)

if __name__ == "__main__":
    run_tests()
