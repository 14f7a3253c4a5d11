"""Derives which dtypes CUDA lacks for an operator and the CPU has, from torch's own tests.

    python tools/cuda_dtypes.py

prints, for the installed torch, each operator of ATen with the dtypes that CUDA refuses. These are
the facts ``cuda_dtypes`` of csrc/aten/facts/operators.yaml, to which the names of CUDA's kernels
have to be added. It needs no device: the samples run on the CPU.

An OpInfo is about a function, such as ``torch.matmul``, and CUDA refuses in one of the operators
that the function calls. These are the ones that no function calls in a dtype that CUDA has.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["CALLED", "derive"]

# The operators of the CPU, and those that a device with composite ones calls instead.
CALLED = {"convolution": "_convolution", "mv": "addmv"}

_CAPABILITY = (8, 0)
_SAMPLES = 12  # that CUDA refuses
_SERVED_SAMPLES = 4

# An operator, the dtype of its first tensor, and the texts among its arguments: CUDA has
# scatter_reduce of bool with "sum" alone.
_Call = tuple[str, torch.dtype, tuple[str, ...]]


def derive(infos: Iterable[Any]) -> dict[str, set[torch.dtype]]:
    """Returns the dtypes that CUDA refuses, by the name of the operator without overload."""
    infos = list(infos)
    refused: set[_Call] = set()
    for info in infos:
        for dtype in info.supported_dtypes("cpu") - info.supported_dtypes("cuda"):
            refused |= set(_calls(info, dtype, _SAMPLES))
    dtypes = {dtype for _, dtype, _ in refused}
    for info in infos:
        if not refused:
            break
        for dtype in dtypes & info.supported_dtypes("cpu") & info.supported_dtypes("cuda"):
            refused -= set(_calls(info, dtype, _SERVED_SAMPLES))
    found = defaultdict(set)
    for name, dtype, _ in refused:
        found[CALLED.get(name, name)].add(dtype)
    return dict(found)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: set[_Call] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and args and isinstance(args[0], torch.Tensor):
            name = func._schema.name.removeprefix("aten::").removesuffix("_")
            self.calls.add((name, args[0].dtype, tuple(a for a in args if isinstance(a, str))))
        return result


def _calls(info: Any, dtype: torch.dtype, limit: int) -> Iterator[_Call]:
    """The calls that a function makes with the first samples of a dtype."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(info.sample_inputs("cpu", dtype), limit):
            recorder = _Recorder()
            try:
                with recorder:
                    info.op(sample.input, *sample.args, **sample.kwargs)
            except Exception:  # the CPU does not run the sample either
                continue
            yield from (call for call in recorder.calls if call[1] == dtype)


def main() -> None:
    # Without a device, torch's tests take the GPU for an old one.
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: _CAPABILITY),
    ):
        from torch.testing._internal.common_methods_invocations import op_db

    found = derive(op_db)
    for name, dtypes in sorted(found.items()):
        names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
        print(f"{name}: refuses {', '.join(names)}")


if __name__ == "__main__":
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    main()
