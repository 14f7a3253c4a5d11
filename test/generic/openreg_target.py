"""openreg as the target of the conformance kit, with its additional guarantees.

Importing this module first makes it the device that the kit's tests are about, in this process.
Results are bit-identical to the CPU's, including random numbers; the fallback reports the calls for
which the host waits; a gate holds streams; and differences have to be listed in known_gaps.py.
"""

import contextlib
import os
import sys
import threading
import unittest
from collections.abc import Iterator
from pathlib import Path

import torch
from common import DEVICE_TYPE, check_leftovers
from known_gaps import GAPS

from torch_openreg import testing
from torch_openreg.conformance.comparison import EXACT
from torch_openreg.conformance.target import Target, set_target

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "_ext"))

from tiers import tier_of

__all__ = ["TARGET"]

# CUDA runs other algorithms of attention than the CPU, whose last bits and strides differ. In the
# sweeps, both compose it; test/cuda/test_attention.py compares the fused ones.
if DEVICE_TYPE == "cuda":
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)

# After this time, the gate of a held stream opens: some programs wait for the stream, which is
# valid.
_HOLD_S = 0.1


class _OpenRegTarget(Target):
    is_poisoned = False
    gives_the_cpus_random_numbers = True

    def lacks(self, feature: str) -> str | None:
        """As for any device, but what openreg has lost is a failure and no reason to skip."""
        text = super().lacks(feature)
        if text is not None and feature not in ("two devices", "graphs"):
            raise AssertionError(f"openreg lacks {feature}: {text}")
        return text

    def seed(self, number: int) -> None:
        if not torch.openreg._is_in_bad_fork():
            torch.openreg.default_generators[self.device.index].manual_seed(number)

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def forget_waits(self) -> None:
        torch.openreg.reset_fallback_stats()

    def waits(self) -> dict[str, int]:
        return torch.openreg.fallback_stats(synchronous_only=True)

    def tier_of(self, operator: str) -> str:
        return tier_of(operator)

    def gap(self, name: str, variant: str, dtype: str) -> str | None:
        is_full = os.environ.get("OPENREG_TEST_FULL") == "1"
        for one in GAPS:
            if one.matches(name, variant, dtype, is_full):
                return one.reason
        return None

    @contextlib.contextmanager
    def hold(self, stream: torch.Stream) -> Iterator[None]:
        with testing.StreamGate(stream) as gate:
            timer = threading.Timer(_HOLD_S, gate.open)
            timer.start()
            try:
                yield
            finally:
                timer.cancel()
                timer.join()

    def check_before_class(self) -> None:
        if not self.is_poisoned:
            return
        number = torch.empty(1, device=self.device).item()
        if number == number:
            raise AssertionError(
                "poison: expected memory to be filled, but it was allocated before OPENREG_"
                "MEMORY_POISON was set; run this file in a process of its own"
            )

    def check_after_test(self, case: unittest.TestCase) -> None:
        check_leftovers(case)
        if self.is_poisoned:
            case.assertEqual(torch.openreg.memory.check(), [], "a kernel wrote where it must not")


TARGET = _OpenRegTarget(DEVICE_TYPE, EXACT)
set_target(TARGET)
