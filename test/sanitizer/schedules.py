"""Runs the programs under schedules and compares what each operator computed.

Run as a program: prints what came out as JSON, for test_schedules.py. It sets
``OPENREG_MEMORY_POISON``, so it needs a process of its own.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["OPENREG_MEMORY_POISON"] = "1"
    sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from sanitizer import correct, hosts, lifetimes, programs, races
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_openreg.testing import schedule

__all__ = ["SCHEDULES"]

SCHEDULES = ("lazy", "eager", *map(str, range(12)))

# What an operator computed: its name and the copies of its results.
_Log = list[tuple[str, list[torch.Tensor]]]


class _Recorder(TorchDispatchMode):
    """Copies what each operator returns or writes, on the stream that computed it."""

    def __init__(self) -> None:
        super().__init__()
        self.log: _Log = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the signature is torch's
        result = func(*args, **(kwargs or {}))
        written = [
            value
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        name = str(func)
        # New memory has no contents to compare.
        if "empty" not in name and "record_stream" not in name and "pin_memory" not in name:
            tensors = [x for x in tree_leaves([result, written]) if isinstance(x, torch.Tensor)]
            self.log.append((name, [x.detach().clone() for x in tensors]))
        return result


def _numbers(*sizes: int, where: torch.device = programs.device) -> torch.Tensor:
    """In place of ``_ready``: with other contents than zeros, so that an order can show."""
    shape = sizes or (programs.SIZE,)
    tensor = torch.arange(1.0, torch.Size(shape).numel() + 1, device=where).reshape(shape)
    torch.accelerator.synchronize()
    return tensor


def _run(order: str, program: Callable[..., None], *args: bool) -> _Log:
    torch.manual_seed(0)
    with schedule(order), _Recorder() as recorder:
        program(*args)
    torch.accelerator.synchronize()
    for number in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(number)
    return [(name, [x.cpu() for x in tensors]) for name, tensors in recorder.log]


def _are_equal(one: _Log, other: _Log) -> bool:
    return [name for name, _ in one] == [name for name, _ in other] and all(
        x.shape == y.shape and torch.equal(x.nan_to_num(123.0), y.nan_to_num(123.0))
        for (_, xs), (_, ys) in zip(one, other, strict=True)
        for x, y in zip(xs, ys, strict=True)
    )


def _differences(mistake: programs.Mistake) -> dict[str, Any]:
    """Under which schedules a mistake computes something else than the program put right."""
    right = _run("eager", mistake.run, True)
    wrong = _run("eager", mistake.run, False)
    # The twin may call more operators. Then the order of the program's lines is what is right.
    is_comparable = [name for name, _ in right] == [name for name, _ in wrong]
    reference = right if is_comparable else wrong
    found = [
        order for order in SCHEDULES if not _are_equal(_run(order, mistake.run, False), reference)
    ]
    again = [
        order for order in found[:3] if not _are_equal(_run(order, mistake.run, False), reference)
    ]
    return {"found": found, "again": again, "kind": mistake.kind}


def _main() -> None:
    for module in (correct, hosts, lifetimes, races):
        module._ready = _numbers
    outcome = {
        "mistakes": {one.name: _differences(one) for one in programs.MISTAKES},
        "correct": {},
    }
    twins = [(f"{one.name}, put right", one.run, (True,)) for one in programs.MISTAKES]
    for name, run, args in [*((run.__name__, run, ()) for run in correct.CORRECT), *twins]:
        reference = _run("free", run, *args)
        outcome["correct"][name] = [
            order for order in SCHEDULES if not _are_equal(_run(order, run, *args), reference)
        ]
    print(json.dumps(outcome))


if __name__ == "__main__":
    _main()
