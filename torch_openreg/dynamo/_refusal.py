"""Graphs that Inductor cannot compile for this device type raise an error with the reason.

Programs that compile for the CPU do not notice: the error comes from a pass over the graph.
"""

from typing import Any

import torch
from torch._inductor.codegen.common import register_backend_for_device
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["refuse"]


class _Refusal(CustomGraphModulePass):
    """The pass that raises an error for graphs on this device type."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Raises the error."""
        raise RuntimeError(f"torch.compile: {self._reason}; use backend='aot_eager'")

    def uuid(self) -> Any:
        """Returns what keys of caches contain."""
        return self._reason


def refuse(reason: str) -> None:
    """Makes the compilation of a graph with tensors on this device raise an error.

    Args:
        reason: Why Inductor cannot compile it.
    """
    register_backend_for_device(
        DEVICE_TYPE, CppScheduling, PythonWrapperCodegen, device_custom_pass=_Refusal(reason)
    )
