"""The memory of a program is the same in a dry run as in a real one, to the byte."""

import json
from pathlib import Path

import pytest
from common import run_children, run_tests
from extras.dry_run.programs import PROGRAMS
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
)

pytestmark = pytest.mark.sample(0.1)

_CODE = f"""
import sys, warnings
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
warnings.simplefilter("ignore")
from torch_openreg.extras import dry_run
dry_run.start(False)
from extras.dry_run import programs
programs.run("NAME")
"""

# Programs whose memory differs, by the reason.
OTHER_MEMORY = {
    "batch_norm_in_evaluation": "the description has statistics that the CPU does not save",
    "layer_norm_of_bfloat16": "the statistics have the description's dtype, not the CPU's",
    "recurrent_network": "the CPU's kernel keeps a workspace, which the description lacks",
    "rejected_draws": "the program draws anew what it rejects, and rejects no made-up number",
}
# Programs in whose real run the speed of streams decides what memory is reused.
RACING = {"distributed_data_parallel"}


def memories(*cases):
    """Runs programs, each given by its name and its settings; returns what they print."""
    children = run_children([(_CODE.replace("NAME", name), settings) for name, settings in cases])
    for child in children:
        if child.returncode != 0:
            raise AssertionError(f"the program ended with {child.returncode}\n{child.output}")
    return [json.loads(child.output.splitlines()[-1]) for child in children]


def allocated(marks):
    """Returns the allocated bytes of each device at each mark."""
    return [[row[0] for row in mark[:-1]] for mark in marks]


class TestPrograms(TestCase):
    @parametrize("name", sorted(PROGRAMS))
    def test_memory_is_that_of_the_real_run(self, name):
        real, dry = memories(
            (name, {}), (name, {"OPENREG_DRY_RUN": "1", "OPENREG_DRY_RUN_SUMMARY": "0"})
        )
        self.assertGreater(len(real), 1)
        if name in RACING:
            real, dry = allocated(real), allocated(dry)
        if name in OTHER_MEMORY:
            self.assertNotEqual(dry, real, OTHER_MEMORY[name])
            return
        self.assertEqual(dry, real)

    @parametrize("name", ["adamw", "gradient_accumulation", "optimizer_in_backward"])
    def test_expandable_segments(self, name):
        settings = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        dry_run = {"OPENREG_DRY_RUN": "1", "OPENREG_DRY_RUN_SUMMARY": "0"}
        real, dry, other = memories((name, settings), (name, settings | dry_run), (name, dry_run))
        self.assertEqual(dry, real)
        self.assertEqual(allocated(other), allocated(dry))
        self.assertNotEqual(other, dry)  # reserved memory

    @parametrize("name", ["adamw", "streams", "dropouts"])
    @parametrize("timing", ["early", "late"])
    def test_two_dry_runs_have_the_same_memory(self, name, timing):
        settings = {
            "OPENREG_DRY_RUN": "1",
            "OPENREG_DRY_RUN_SUMMARY": "0",
            "OPENREG_DRY_RUN_TIMING": timing,
        }
        one, other = memories((name, settings), (name, settings))
        self.assertEqual(one, other)


instantiate_parametrized_tests(TestPrograms)

if __name__ == "__main__":
    run_tests()
