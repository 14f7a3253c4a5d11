"""Programs that are right on CUDA, as its rules of streams, events and memory have it.

Each runs freely, and with a stream held by a gate while the host submits, which exposes missing
ordering. Free memory reads as NaN, which exposes uses after a free.
"""

from poison import TARGET

# isort: split
import pytest
import torch
from common import StreamGate, run_tests

from torch_openreg.conformance import test_stream_programs as programs

pytestmark = pytest.mark.sample(0.3)

__all__ = ["TARGET"]


class TestStreamPrograms(programs.TestStreamPrograms):
    @pytest.mark.openreg_sanitizer(expect="race")
    def test_a_held_stream_shows_a_missing_order(self):
        """The method finds mistakes: this program forgets to wait."""
        x, side = programs.on_device(programs.SIZE), torch.Stream(programs.DEVICE)
        with StreamGate(side):
            with side:
                y = x.exp()
            z = y + 1
            programs.current().synchronize()
        self.assertNotEqual(z.cpu(), programs.numbers(programs.SIZE).exp() + 1)


if __name__ == "__main__":
    run_tests()
