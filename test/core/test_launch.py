"""Launches: how often a closure is copied and moved on its way, and what it tells of itself."""

from common import OpenRegTestCase, run_tests
from interfaces import extension

OWNED = 1000  # of a closure that counts, as in launch_test.cpp
ONE_MOVE = (0, 1)  # no copy, one move: into the queue


class TestLaunch(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.extra = extension("core/launch_test.cpp")

    def test_closure_that_a_launch_makes_moves_once(self):
        self.assertEqual(self.extra.launch_made(), ONE_MOVE)

    def test_closure_that_the_caller_gives_up_moves_into_the_frame_first(self):
        self.assertEqual(self.extra.launch_given_up(), (0, 2))

    def test_closure_that_the_caller_keeps_is_copied(self):
        self.assertEqual(self.extra.launch_kept(), (1, 1))

    def test_kernel_that_the_launch_of_an_operator_makes_moves_once(self):
        self.assertEqual(self.extra.launch_made_op(), ONE_MOVE)

    def test_kernel_of_a_fill_moves_into_the_frame_first(self):
        self.assertEqual(self.extra.launch_work(), (0, 2))

    def test_descriptor_has_what_the_closure_tells(self):
        self.assertEqual(self.extra.told_by_counting(), (OWNED, OWNED))
        self.assertEqual(self.extra.told_by_silent(), (-1, -1))

    def test_descriptor_of_a_wrapped_kernel_has_what_the_kernel_tells(self):
        self.assertEqual(self.extra.told_by_wrapped(), (OWNED, OWNED))
        self.assertEqual(self.extra.told_by_wrapped_silent(), (-1, -1))


if __name__ == "__main__":
    run_tests()
