"""Which of the samples and their variants a sweep runs."""

from openreg_target import TARGET

# isort: split
from unittest import mock

from common import OpenRegTestCase, run_tests

from torch_openreg.conformance import sweep
from torch_openreg.conformance.sweep import Counts, crossed, sampled

__all__ = ["TARGET"]

_COUNTS = Counts(usual=2, thorough=8, others=1)


def _variants_of(sample: int) -> list[tuple[int, int]]:
    return [(sample, number) for number in range(8)]


def _counts(is_full: bool, counts: Counts = _COUNTS) -> list[int]:
    """How many variants each sample has, of those that have any."""
    with mock.patch.object(sweep, "IS_FULL", is_full):
        pairs = list(crossed("name", range(20), 3, _variants_of, counts))
        assert pairs == list(crossed("name", range(20), 3, _variants_of, counts))
    assert all(variant[0] == sample for sample, variant in pairs)
    assert len(set(pairs)) == len(pairs)
    samples = [sample for sample, _ in pairs]
    return [samples.count(sample) for sample in sorted(set(samples))]


class TestSampling(OpenRegTestCase):
    def test_usual_run_has_some_samples_with_some_variants(self):
        self.assertEqual(_counts(is_full=False), [2, 2, 2])

    def test_full_run_has_all_samples_and_some_with_all_variants(self):
        self.assertEqual(sorted(_counts(is_full=True)), [1] * 17 + [8] * 3)

    def test_limit_above_the_number_of_variants_is_all(self):
        limits = Counts(usual=100, thorough=100, others=100)
        self.assertEqual(_counts(is_full=True, counts=limits), [8] * 20)

    def test_others_take_different_variants(self):
        with mock.patch.object(sweep, "IS_FULL", True):
            pairs = crossed("name", range(20), 0, _variants_of, _COUNTS)
            self.assertGreater(len({number for _, (_, number) in pairs}), 4)

    def test_full_run_has_all_items(self):
        for is_full, count in ((False, 5), (True, 20)):
            with mock.patch.object(sweep, "IS_FULL", is_full):
                self.assertEqual(len(sampled("name", range(20), 5)), count)


if __name__ == "__main__":
    run_tests()
