"""``torch.compile`` with Inductor: its fused C++ kernels, on our streams.

Inductor imports this package, by names that it looks up in ``torch.openreg``, and so does generated
code. Importing it registers everything but the backend's name and the device's interface, which
``torch_openreg.dynamo`` registers earlier.

Note [How Inductor finds us]
    Before it compiles a first graph, for whatever device, Inductor asks the module of the device
    type for four classes, and registers them if all four are there. ``torch.openreg`` has three:
    asked for the first, it imports this package, which registers by itself, with the pass that
    Inductor's own registration has no place for. The fourth makes Inductor leave it at that.

    What we lean on in Inductor may be missing in another version of torch. Programs that compile
    for the CPU must not notice: a graph with tensors of ours is then refused, by a pass, and no
    other.
"""

from typing import Any

import torch
from torch._inductor.codegen.common import register_backend_for_device
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from torch_openreg.inductor._devices import DEVICE_TYPE

__all__: list[str] = []


class _Refusal(CustomGraphModulePass):
    """The pass that refuses graphs on our devices."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Refuses a graph."""
        raise RuntimeError(
            f"torch.compile: Inductor of torch {torch.__version__} does not support {DEVICE_TYPE}: "
            f"{self._reason}; use backend='aot_eager'"
        )

    def uuid(self) -> Any:
        """Returns what keys of caches contain."""
        return self._reason


def _register() -> None:
    try:
        from torch_openreg.inductor import _backend
    except (ImportError, AttributeError) as error:
        register_backend_for_device(
            DEVICE_TYPE,
            CppScheduling,
            PythonWrapperCodegen,
            device_custom_pass=_Refusal(str(error)),
        )
    else:
        _backend.register()


_register()
