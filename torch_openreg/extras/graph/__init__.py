"""Graphs: work captured from a stream once and replayed many times."""

from types import ModuleType

from torch_openreg.extras import add_module, add_names
from torch_openreg.extras.graph import graphed_callables, graphs

__all__ = ["register"]


def register(module: ModuleType) -> None:
    """Adds ``torch.openreg.Graph`` and the functions around it.

    Args:
        module: The module ``torch.openreg``.
    """
    add_module(module, graphs)
    add_module(module, graphed_callables)
    add_names(module, graphs, ("CUDAGraph", "Graph", "graph", "graph_pool_handle"))
    add_names(module, graphed_callables, graphed_callables.__all__)
