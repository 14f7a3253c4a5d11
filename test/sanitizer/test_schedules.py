"""Schedules, with poison and quarantine, show mistakes as values, and change no right program."""

import json
import subprocess
import sys
from pathlib import Path

from common import OpenRegTestCase, run_tests

# Mistakes that no schedule can show as a value, with the reasons.
NOT_COMPARABLE: dict[str, str] = {}


class TestSchedules(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        result = subprocess.run(
            [sys.executable, Path(__file__).with_name("schedules.py")],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)
        cls.outcome = json.loads(result.stdout)

    def test_right_programs_compute_the_same_under_all(self):
        differing = {name: found for name, found in self.outcome["correct"].items() if found}
        self.assertEqual(differing, {})

    def test_most_mistakes_compute_something_else_under_one(self):
        mistakes = {
            name: one
            for name, one in self.outcome["mistakes"].items()
            if name not in NOT_COMPARABLE
        }
        missed = sorted(name for name, one in mistakes.items() if not one["found"])
        self.assertGreaterEqual(1 - len(missed) / len(mistakes), 0.8, missed)

    def test_what_a_schedule_shows_it_shows_again(self):
        for name, one in self.outcome["mistakes"].items():
            self.assertEqual(one["again"], one["found"][:3], name)


if __name__ == "__main__":
    run_tests()
