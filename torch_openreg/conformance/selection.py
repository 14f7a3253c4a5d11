"""The tests of some of ATen's operators, for ``--conformance-operators``.

An operator's tests are those of the entries of torch's databases that have its name. Operators that
have none, such as ``aten::threshold_backward``, are tested by entries that call them: those that
call few others, as ATen's CPU kernels for the first samples show.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import ForeachFuncInfo
from torch.utils._python_dispatch import TorchDispatchMode

from torch_openreg.conformance.operators import (
    dtypes_under_test,
    gradients_of,
    samples_of,
)

__all__ = ["entries_for", "entry_of"]

_ENTRIES = 8  # for an operator without one of its name
_SAMPLES = 2  # of each entry
_NAMES = ("name", "aten_name", "aten_backward_name", "decomp_aten_name")


def entry_of(item: pytest.Item) -> Any:
    """The entry of a database of operators that a test is about; None for other tests."""
    # torch gives the instances of a parametrized test a parameter, with its values as the default,
    # and each object of a test case wraps its method.
    method = getattr(getattr(item, "cls", None), item.name, None)
    defaults = getattr(method, "__defaults__", None) or ()
    parameters = next((one for one in defaults if isinstance(one, dict)), {})
    info = parameters.get("info")
    return info if hasattr(info, "sample_inputs_func") else None


def entries_for(operators: Sequence[str], entries: Mapping[str, Any]) -> set[str]:
    """The names of the entries that test operators, such as "aten::mul.out" or "mul".

    Warns of an operator that has no test.

    Raises:
        pytest.UsageError: torch has no such operator.
    """
    found: set[str] = set()
    calls: dict[str, set[str]] = {}
    for operator in operators:
        name = operator.partition(".")[0]
        if not torch._C._jit_get_schemas_for_operator(name if "::" in name else f"aten::{name}"):
            raise pytest.UsageError(
                "--conformance-operators: expected operators of torch, such as aten::mul.out, got "
                f"{operator!r}"
            )
        bare = _bare(operator)
        names = [name for name, info in entries.items() if bare in _names_of(info)]
        if not names:
            calls = calls or {name: _called_by(info) for name, info in entries.items()}
            callers = [name for name in calls if bare in calls[name]]
            names = sorted(callers, key=lambda name: len(calls[name]))[:_ENTRIES]
        if not names:
            text = f"--conformance-operators: no entry of torch's database calls {operator}"
            warnings.warn(pytest.PytestWarning(text), stacklevel=1)
        found.update(names)
    return found


def _bare(operator: str) -> str:
    """The name without namespace, overload and the marks of variants."""
    return operator.rpartition("::")[2].partition(".")[0].strip("_").removesuffix("_overrideable")


def _names_of(info: Any) -> set[str]:
    """The operators that an entry is about, by its names in the database."""
    names = (getattr(info, attribute, None) for attribute in _NAMES)
    return {_bare(name.rpartition(".")[2]) for name in names if name}


def _called_by(info: Any) -> set[str]:
    """The operators that an entry's first samples call on the CPU, forward and backward."""
    dtypes = dtypes_under_test(info)
    is_for_cpu = not info.name.startswith("jiterator") and not isinstance(info, ForeachFuncInfo)
    if not dtypes or not is_for_cpu:
        return set()
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    has_gradients = info.supports_autograd and dtype.is_floating_point
    names = _Names()
    with names:
        for sample in samples_of(info, dtype, _SAMPLES, requires_grad=has_gradients):
            gradients_of(info.op)(sample.input, *sample.args, **sample.kwargs)
    return names.called


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.called.add(_bare(func.name()))
        return func(*args, **(kwargs or {}))
