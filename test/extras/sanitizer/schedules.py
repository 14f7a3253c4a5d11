"""Runs the programs under schedules and compares what each operator computed.

Run as a program, for test_schedules.py: prints what came out as JSON. The argument is ``mistakes``,
or a part of the right programs: 0/8 is the first of eight. The program sets
``OPENREG_MEMORY_POISON``, so it needs a separate process.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["OPENREG_MEMORY_POISON"] = "1"
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from extras.sanitizer import correct, hosts, lifetimes, programs, races
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_openreg.testing import schedule

__all__ = ["SCHEDULES"]

SCHEDULES = ("lazy", "eager", *map(str, range(24)))

# What an operator computed: its name and the copies of its results.
_Log = list[tuple[str, list[torch.Tensor]]]


class _Recorder(TorchDispatchMode):
    """Copies what each operator computes, on the stream that computed it."""

    def __init__(self) -> None:
        super().__init__()
        self.log: _Log = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the signature is torch's
        result = func(*args, **(kwargs or {}))
        name = str(func)
        computed = []
        for returned, value in zip(
            func._schema.returns, result if isinstance(result, tuple) else (result,), strict=False
        ):
            # A view is not changed.
            if returned.alias_info is None or returned.alias_info.is_write:
                computed.append(value)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                computed.append(value)
        leaves = tree_leaves(computed)
        is_on_device = any(
            isinstance(x, torch.Tensor) and x.device.type != "cpu" for x in tree_leaves(args)
        )
        # New memory has no contents, and what comes from a device may not be there yet.
        if not any(word in name for word in ("empty", "pin_memory", "record_stream", "set_")):
            kept = [
                x.detach().to_dense().clone() if isinstance(x, torch.Tensor) else torch.tensor(x)
                for x in leaves
                if isinstance(x, float | int)
                or (isinstance(x, torch.Tensor) and not (is_on_device and x.device.type == "cpu"))
            ]
            self.log.append((name, kept))
        return result


class _Numbers:
    """Instead of ``_ready``: all tensors differ, so that the order affects the result."""

    def __init__(self) -> None:
        self.next = 1.0

    def __call__(self, *sizes: int, where: torch.device = programs.device) -> torch.Tensor:
        shape = torch.Size(sizes or (programs.SIZE,))
        tensor = torch.arange(shape.numel(), device=where) + self.next
        self.next += 1000
        torch.accelerator.synchronize()
        return tensor.reshape(shape)


_numbers = _Numbers()


def _run(order: str, program: Callable[..., None], *args: bool) -> _Log:
    # Once with other numbers, so that pinned memory does not hold the right ones already, as memory
    # of the device would if it were not given back.
    for number in (1e5, 1.0):
        torch.manual_seed(int(number))
        _numbers.next = number
        with schedule(order if number == 1 else "eager"), _Recorder() as recorder:
            program(*args)
        for index in range(torch.accelerator.device_count()):
            torch.accelerator.synchronize(index)
        log = [(name, [x.cpu() for x in kept]) for name, kept in recorder.log]
        del recorder
        torch.accelerator.empty_cache()
    return log


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
    # The twin may call more operators. Then the order of the program's lines is the correct one.
    is_comparable = [name for name, _ in right] == [name for name, _ in wrong]
    reference = right if is_comparable else wrong
    found = [
        order for order in SCHEDULES if not _are_equal(_run(order, mistake.run, False), reference)
    ]
    return {"found": found, "kind": mistake.kind}


def _changes(part: int, parts: int) -> dict[str, list[str]]:
    """Under which schedules each right program of the part computes something else."""
    twins = [(f"{one.name}, put right", one.run, (True,)) for one in programs.MISTAKES]
    right = [*((run.__name__, run, ()) for run in correct.CORRECT), *twins]
    changes = {}
    for name, run, args in right[part::parts]:
        reference = _run("free", run, *args)
        changes[name] = [
            order for order in SCHEDULES if not _are_equal(_run(order, run, *args), reference)
        ]
    return changes


def _main(argument: str) -> None:
    for module in (hosts, lifetimes, races):
        module._ready = _numbers
    if argument == "mistakes":
        outcome = {one.name: _differences(one) for one in programs.MISTAKES}
    else:
        outcome = _changes(*map(int, argument.split("/")))
    print(json.dumps(outcome))


if __name__ == "__main__":
    _main(sys.argv[1])
