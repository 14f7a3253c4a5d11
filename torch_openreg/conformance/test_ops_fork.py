"""Worker processes of a DataLoader call operators on the CPU while the parent uses the device.

The workers are forked from a process whose device is busy, and must not touch it.
"""

import contextlib
import io
import warnings
from typing import Any
from unittest import mock

import torch

from torch_openreg.conformance.arguments import CPU
from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize
from torch_openreg.conformance.comparison import difference
from torch_openreg.conformance.operators import (
    OPERATORS,
    arguments_of,
    call_of,
    dtypes_under_test,
    samples_of,
)
from torch_openreg.conformance.records import Record, write_record
from torch_openreg.conformance.sweep import DEVICE, Outcome, SweepTestCase, outcome, sampled
from torch_openreg.conformance.target import target

_FIRST = 8  # samples to choose from
_PARTS = 4

_WITH_FLOATS = [
    one.arg_values for one in OPERATORS if torch.float32 in dtypes_under_test(one.arg_values)
]


def _outcome_of(info: Any, device: torch.device) -> Outcome | None:
    """The outcome of a call of an operator with one of its samples; None without samples."""
    samples = list(samples_of(info, torch.float32, _FIRST))
    if not samples:
        return None
    sample = sampled(info.formatted_name, samples, 1)[0]
    return outcome(call_of(info, info.op), arguments_of(info, sample), device)


class _Calls(torch.utils.data.Dataset[tuple[int, bytes]]):
    """Outcomes of operators on the CPU, as a worker gives them."""

    def __init__(self, infos: list[Any]) -> None:
        self._infos = infos

    def __len__(self) -> int:
        return len(self._infos)

    def __getitem__(self, index: int) -> tuple[int, bytes]:
        warnings.simplefilter("ignore")
        # The database saves generator states of all devices.
        with mock.patch.object(torch.testing._utils, "freeze_rng_state", contextlib.nullcontext):
            one = _outcome_of(self._infos[index], CPU)
        result = None if one is None else one.result
        file = io.BytesIO()
        torch.save(repr(result) if isinstance(result, Exception) else result, file)
        return index, file.getvalue()


class TestFork(SweepTestCase):
    @parametrize("part", list(range(_PARTS)))
    def test_workers_and_parent(self, part: Any) -> None:
        infos = _WITH_FLOATS[part::_PARTS]
        record = Record(f"part {part}", "forked workers")
        failures = []
        # Workers compute with one thread.
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        busy = torch.ones(256, 256, device=DEVICE)
        loader = torch.utils.data.DataLoader(
            _Calls(infos),
            batch_size=None,
            num_workers=2,
            multiprocessing_context="fork",
            timeout=60,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for index, contents in loader:
                busy = busy @ busy / 256
                actual = _outcome_of(infos[index], DEVICE)
                if actual is None or isinstance(actual.result, Exception):
                    continue
                result = torch.load(io.BytesIO(contents), weights_only=False)
                text = difference(actual.result, result, DEVICE, target().tolerance)
                if text is not None:
                    shown = result if isinstance(result, str) else ""
                    failures.append(f"{infos[index].formatted_name}: {text} {shown}")
                record.samples += 1
                record.asynchronous += 1
        record.passed, record.failed = int(not failures), len(failures)
        write_record(record)
        self.assertFalse(failures, "\n".join(["", *failures]))
        self.assertGreater(record.samples, len(infos) // 2)
        self.assert_agrees(busy, torch.ones(256, 256))


instantiate_parametrized_tests(TestFork)
