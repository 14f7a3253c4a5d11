"""``torch.compile`` with Inductor: its fused C++ kernels, on our streams.

Inductor imports this package through names in ``torch.openreg``, and so does generated code.
Importing it registers everything but the backend's name and the device's interface, which
``torch_openreg.dynamo`` registers earlier.

Note [How Inductor finds the package]
    Before it compiles its first graph, for any device, Inductor of torch 2.15 and later calls the
    function ``_inductor_backend_init`` of the device type's module; that of ``torch.openreg``
    imports this package. Earlier releases look up four classes in the module instead, and register
    them if all four exist. ``torch.openreg`` has three: the lookup of the first imports this
    package, which makes its own registration, including the pass, for which Inductor's registration
    has no argument. The fourth makes Inductor leave it at that.

    Internals of Inductor that this package uses may be missing in another version of torch. This
    must not affect programs that compile for the CPU: a pass then raises an error for graphs with
    openreg tensors only.
"""

from typing import Any

import torch
from torch._inductor.codegen.common import register_backend_for_device
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from torch_openreg import _extras
from torch_openreg.inductor._devices import DEVICE_TYPE

__all__: list[str] = []


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


def _register() -> None:
    if not _extras.has("inductor"):
        _refuse(_extras.explain(f"a graph with tensors on {DEVICE_TYPE}", "inductor"))
        return
    try:
        from torch_openreg.inductor import _backend
    except (ImportError, AttributeError) as error:
        _refuse(f"Inductor of torch {torch.__version__} does not support {DEVICE_TYPE}: {error}")
    else:
        _backend.register()


def _refuse(reason: str) -> None:
    register_backend_for_device(
        DEVICE_TYPE, CppScheduling, PythonWrapperCodegen, device_custom_pass=_Refusal(reason)
    )


_register()
