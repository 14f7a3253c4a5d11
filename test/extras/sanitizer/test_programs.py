"""Each mistake is found, with both lines and every time, and no correct program raises an alarm."""

import common  # noqa: F401  (adds the folder of the next modules)
import extras.sanitizer.graphs
import extras.sanitizer.hosts
import extras.sanitizer.libraries
import extras.sanitizer.lifetimes
import extras.sanitizer.pages
import extras.sanitizer.races
import extras.sanitizer.unwritten
import extras.sanitizer.written  # noqa: F401
import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from extras.sanitizer.correct import CORRECT
from extras.sanitizer.programs import MISTAKES, device, same_stream

from torch_openreg.extras.sanitizer import sanitizer as checker

_REPETITIONS = 5


def _found(run, *args, **options):
    """Runs a program with the sanitizer on, and returns the findings."""
    module = getattr(torch, device.type)
    module.synchronize()
    checker.clear()
    with checker.check(action="collect", **options), same_stream():
        run(*args)
        module.synchronize()
    found = checker.findings()
    checker.clear()
    return found


def _options_of(mistake):
    """The results of graphs are always checked."""
    return {"uninitialized": mistake.filename.endswith("unwritten.py")}


def _lines_of(finding, filename):
    return {
        frame.lineno for stack in finding.stacks() for frame in stack if frame.filename == filename
    }


def _describe(found):
    return [(one.kind, sorted((a.filename, a.lineno) for a in one.accesses)) for one in found]


class TestCounts(OpenRegTestCase):
    def test_there_are_many_of_each(self):
        for programs in (MISTAKES, CORRECT):
            names = {one.__name__ if callable(one) else one.name for one in programs}
            self.assertEqual(len(names), len(programs))
            self.assertGreaterEqual(len(names), 60)


class TestMistakes(OpenRegTestCase):
    @parametrize("mistake", [subtest(one, name=one.name) for one in MISTAKES])
    def test_is_found_with_both_lines_each_time(self, mistake):
        self.assertEqual(len(mistake.lines), 2)
        outcomes = []
        for _ in range(_REPETITIONS):
            found = _found(mistake.run, False, **_options_of(mistake))
            named = [
                one
                for one in found
                if one.kind == mistake.kind
                and set(mistake.lines) <= _lines_of(one, mistake.filename)
            ]
            self.assertTrue(named, "\n".join(str(one) for one in found) or "nothing was found")
            outcomes.append(_describe(found))
        self.assertEqual(outcomes, [outcomes[0]] * _REPETITIONS)

    @parametrize("mistake", [subtest(one, name=one.name) for one in MISTAKES])
    def test_is_silent_once_it_is_put_right(self, mistake):
        found = _found(mistake.run, True, **_options_of(mistake))
        self.assertEqual(found, [], "\n".join(str(one) for one in found))


class TestCorrectPrograms(OpenRegTestCase):
    @parametrize("run", [subtest(one, name=one.__name__) for one in CORRECT])
    def test_raises_no_alarm(self, run):
        found = _found(run, uninitialized=True)
        self.assertEqual(found, [], "\n".join(str(one) for one in found))


instantiate_parametrized_tests(TestMistakes)
instantiate_parametrized_tests(TestCorrectPrograms)


if __name__ == "__main__":
    run_tests()
