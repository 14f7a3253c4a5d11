"""Kernels of Triton in programs that torch.compile compiles: what Dynamo asks.

Importing this module lets Dynamo take ``@triton.jit`` functions into graphs.
"""

import functools
import sys
from typing import Any

import torch.utils._triton

from triton_openreg import runs_here

__all__: list[str] = []

# Modules that ask whether there may be kernels of Triton in a program. Others ask whether to make
# some of their own.
_OF_PROGRAMS = frozenset({"torch._dynamo.variables.builder", "torch._export.serde.serialize"})


def _answer_programs() -> None:
    """Replaces ``has_triton`` by a function that has another answer for these modules."""
    module: Any = torch.utils._triton
    before = module.has_triton

    @functools.wraps(before)
    def has_triton(*args: Any, **kwargs: Any) -> bool:
        if sys._getframe(1).f_globals.get("__name__") in _OF_PROGRAMS and runs_here():
            return True
        return bool(before(*args, **kwargs))

    module.has_triton = has_triton


_answer_programs()
