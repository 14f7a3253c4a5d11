"""Schedules, with poison and quarantine, show mistakes as values, and change no right program."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

pytestmark = pytest.mark.sample(0.05)

# Right programs that compute something else under some schedules, with the reasons.
CHANGED = {
    "waited_then_allocated_with_nothing_between": "poison writes to memory when it is allocated, "
    "which is after the wait",
}


PARTS = 24  # of the right programs


def outcome(argument):
    result = subprocess.run(
        [sys.executable, Path(__file__).with_name("schedules.py"), argument],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if result.returncode != 0:
        raise AssertionError(result.stdout + result.stderr)
    return json.loads(result.stdout)


class TestSchedules(OpenRegTestCase):
    @parametrize("part", range(PARTS))
    def test_right_programs_compute_the_same_under_all(self, part):
        changes = outcome(f"{part}/{PARTS}")
        self.assertGreater(len(changes), 0)
        differing = {name: found for name, found in changes.items() if found}
        self.assertEqual(set(differing), set(CHANGED) & set(changes), differing)

    @pytest.mark.slow
    def test_most_mistakes_compute_something_else_under_one(self):
        mistakes = outcome("mistakes")
        missed = sorted(name for name, one in mistakes.items() if not one["found"])
        self.assertGreaterEqual(1 - len(missed) / len(mistakes), 0.8, missed)


instantiate_parametrized_tests(TestSchedules)

if __name__ == "__main__":
    run_tests()
