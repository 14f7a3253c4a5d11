"""Importing this module first makes the device fill memory that nobody owns, in this process.

A kernel that reads what nobody wrote then gets NaN instead of what the call before has left.
"""

import os

os.environ["OPENREG_MEMORY_POISON"] = "1"

import torch
from sweep import DEVICE, SweepTestCase

__all__ = ["PoisonedTestCase"]


class PoisonedTestCase(SweepTestCase):
    """A sweep that finds reads and writes of memory that nobody owns."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        number = torch.empty(1, device=DEVICE).item()
        if number == number:
            raise AssertionError(
                "poison: expected memory to be filled, but it was allocated before OPENREG_"
                "MEMORY_POISON was set; run this file in a process of its own"
            )

    def tearDown(self) -> None:
        super().tearDown()
        self.assertEqual(torch.openreg.memory.check(), [], "a kernel wrote where it must not")
