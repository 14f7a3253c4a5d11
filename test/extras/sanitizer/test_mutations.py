"""The sanitizer finds every wait that is removed from a correct program."""

from functools import cache

import pytest
import torch
from common import OpenRegTestCase, run_tests
from extras.sanitizer.harmless_mutants import HARMLESS, MISSED, UNDECIDED
from extras.sanitizer.mutations import FOLLOWED_CORRECT, FOLLOWED_MISTAKES, is_followed, mutants
from extras.sanitizer.programs import device, same_stream
from extras.sanitizer.recorder import follow

from torch_openreg.extras.sanitizer import sanitizer as checker

pytestmark = pytest.mark.sample(0.06)

_module = getattr(torch, device.type)

# The errors of a program with wrong values from a race: its own assertion, or an index that it read
# from memory before the index was written.
_WRONG_VALUES = (AssertionError, IndexError)


def _names(table):
    return {name for names in table.values() for name in names}


def _is_found(mutant):
    """Whether the sanitizer finds something, or the program ends with an error."""
    _module.synchronize()
    checker.clear()
    try:
        with checker.check(action="collect"), same_stream():
            mutant.run()
            _module.synchronize()
    except (*_WRONG_VALUES, torch.AcceleratorError):
        return True
    else:
        return bool(checker.findings())
    finally:
        checker.clear()
        _module.synchronize()


def _matters(mutant):
    """Whether the model finds something; None if it cannot say."""
    if not mutant.is_followed:
        return None
    try:
        with same_stream():
            return bool(follow(mutant.run, filename=mutant.filename).findings)
    except _WRONG_VALUES:
        return True


@cache
def _outcomes():
    """Of each mutant whether it matters and whether it is found."""
    names = [one.name for one in mutants()]
    assert len(set(names)) == len(names)
    return {one.name: (_matters(one), _is_found(one)) for one in mutants()}


class TestMutations(OpenRegTestCase):
    def test_model_tells_the_mistakes_from_what_is_right(self):
        for mistake in filter(lambda one: is_followed(one.run), FOLLOWED_MISTAKES):
            for is_right in (False, True):
                found = follow(mistake.run, is_right, filename=mistake.filename).findings
                kinds = {one.kind for one in found}
                self.assertEqual(mistake.kind in kinds, not is_right, (mistake.name, found))
                self.assertTrue(not is_right or not found, (mistake.name, found))
        for run in filter(is_followed, FOLLOWED_CORRECT):
            found = follow(run, filename=run.__code__.co_filename).findings
            self.assertEqual(found, set(), run.__name__)

    def test_mutants_that_matter_are_found(self):
        mattering = {name for name, (matters, _) in _outcomes().items() if matters}
        missed = {name for name in mattering if not _outcomes()[name][1]}
        self.assertGreater(len(mattering), 150)
        self.assertLessEqual(len(missed), 0.05 * len(mattering))
        self.assertEqual(missed, _names(MISSED))

    def test_those_that_do_not_are_listed_and_not_found(self):
        quiet = {
            name
            for name, (matters, is_found) in _outcomes().items()
            if not matters and not is_found
        }
        self.assertEqual(quiet - _names(UNDECIDED), _names(HARMLESS))

    def test_what_the_model_calls_right_is_not_found(self):
        wrong = {
            name
            for name, (matters, is_found) in _outcomes().items()
            if matters is False and is_found
        }
        self.assertEqual(wrong, set())

    def test_lists_name_mutants(self):
        listed = _names(HARMLESS) | _names(MISSED) | _names(UNDECIDED)
        self.assertLessEqual(listed, set(_outcomes()))


if __name__ == "__main__":
    run_tests()
