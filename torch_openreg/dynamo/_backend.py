"""The backend ``"openreg"`` of ``torch.compile``."""

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.registry import register_backend

from torch_openreg._device_name import DEVICE_NAME

__all__ = ["compile_graph"]


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: list[torch.Tensor],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph with Inductor, as the backend ``"inductor"`` does.

    Kernels for openreg tensors run on its streams; other devices use Inductor's own code.

    Args:
        gm: The graph.
        example_inputs: Its inputs, fake tensors.
        mode: As in ``torch.compile``.
        options: As in ``torch.compile``.
    """
    compiler: Any = torch._TorchCompileInductorWrapper(mode, options, None)
    compiled: Callable[..., Any] = compiler(gm, example_inputs)
    return compiled


register_backend(compile_graph, name=DEVICE_NAME)
