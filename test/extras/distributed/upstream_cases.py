"""torch's own tests of ``torch.distributed``, made to run here; ``upstream.py`` starts them.

torch's module needs ``BACKEND`` and ``WORLD_SIZE`` at its import. Nothing in it is
copied: the constants about its environment are replaced in its module.
"""

import multiprocessing
import os
import sys
import time
import unittest
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test

__all__ = ["TestDistributed", "run_upstream"]

# Ranks are forked from a process that has imported this module and used no device.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["extras.distributed.upstream_cases"])

# How long ranks wait for one another; torch's limits are for idle machines.
_LIMIT_S = 120
distributed_test.default_pg_timeout = _LIMIT_S
distributed_test.Barrier.sync.__func__.__defaults__ = (None, _LIMIT_S)


class TestDistributed(
    distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    """All of the tests, each with separate ranks."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(_make_process)

    @classmethod
    def _run(cls, rank: int, *arguments: Any, **keywords: Any) -> None:
        if (device_type := os.environ.get("UPSTREAM_DEVICE_TYPE")) is not None:
            _use_device(torch.device(device_type, rank))
        super()._run(rank, *arguments, **keywords)


def _make_process(target: Any, args: Any, **keywords: Any) -> Any:
    # The server has the environment of the first test.
    return _context.Process(target=_begin, args=(dict(os.environ), target, *args), **keywords)


def _begin(environment: Mapping[str, str], target: Any, *arguments: Any, **keywords: Any) -> None:
    os.environ.update(environment)
    target(*arguments, **keywords)


def _use_device(device: torch.device) -> None:
    """Has tests that name no device use this one, and groups for Gloo serve it as well."""
    torch.accelerator.set_device_index(device.index)
    torch.set_default_device(device)
    init_process_group, new_group = dist.init_process_group, dist.new_group

    def mixed(backend: Any) -> Any:
        return f"cpu:gloo,{device.type}:occl" if backend == "gloo" else backend

    def init(backend: Any = None, *arguments: Any, **keywords: Any) -> Any:
        return init_process_group(mixed(backend), *arguments, **keywords)

    def new(ranks: Any = None, timeout: Any = None, backend: Any = None, **keywords: Any) -> Any:
        return new_group(ranks, timeout, mixed(backend), **keywords)

    dist.init_process_group, dist.new_group = init, new


class _Outcomes(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.of: dict[str, tuple[str, str]] = {}

    def _note(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        name = test.id().rpartition(".")[2]
        self.of[name] = outcome, text
        print(f"{outcome} {name} in {time.monotonic() - self._begin:.1f} s", file=sys.stderr)

    def startTest(self, test: unittest.TestCase) -> None:
        self._begin = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, "failed", str(err[1]))

    addError = addFailure


def run_upstream(names: Sequence[str], left_out: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Runs tests, by default all but some.

    Returns:
        Of each, "passed", "failed" or "skipped", and why.
    """
    if not names:
        every = unittest.TestLoader().getTestCaseNames(TestDistributed)
        names = [name for name in every if name not in left_out]
    outcomes = _Outcomes()
    unittest.TestSuite(TestDistributed(name) for name in names).run(outcomes)
    return outcomes.of
