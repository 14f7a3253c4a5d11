"""Inductor's own code for a GPU, on devices of the type cuda: ``OPENREG_INDUCTOR=triton``.

Inductor schedules graphs as for CUDA, and makes kernels in Triton, which ``triton_openreg``
compiles. There are no proxy devices and no pass of ours: only what torch takes from its build with
CUDA is replaced, which is the allocation of tensors and the lines about streams.
"""

# mypy: disable-error-code="no-untyped-call"

import functools
from typing import Any

from torch_openreg.dynamo import _interface
from torch_openreg.extras.inductor import _internals
from torch_openreg.extras.inductor._backend import OpenRegDeviceOpOverrides
from torch_openreg.extras.inductor._devices import DEVICE_TYPE
from torch_openreg.extras.inductor._internals import (
    PythonWrapperCodegen,
    SubgraphPythonWrapperCodegen,
)
from torch_openreg.extras.inductor._wrapper import create_wrapper

__all__ = ["TritonWrapper", "register"]


class TritonWrapper(PythonWrapperCodegen):
    """The wrapper for CUDA, which allocates tensors on our devices."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Returns the wrapper of a graph, or of a graph inside one, which has no imports."""
        return create_wrapper(
            TritonWrapper,
            SubgraphPythonWrapperCodegen,
            is_subgraph,
            subgraph_name,
            parent_wrapper,
            partition_signatures,
        )

    def write_header(self) -> None:
        """Writes the imports."""
        super().write_header()
        self.header.writeline(
            "from torch_openreg.extras.inductor._kernels import "
            "empty_strided_here as empty_strided_cuda"
        )


@functools.lru_cache
def _is_big_gpu(index_or_device: Any = 0) -> bool:
    return True


def register() -> None:
    """Registers our device type."""
    _interface.register_indices(compiles_triton=True)
    # Measures products of matrices with each padding; times here say nothing of a GPU's.
    _internals.config.shape_padding = False
    # Templates of matrix products are for GPUs with many multiprocessors. Ours has as many as this
    # machine has processors, and stands for one that has.
    _internals.inductor_utils.is_big_gpu = _is_big_gpu
    # Inductor registers its own classes at the first query, and would overwrite these.
    _internals.get_device_op_overrides("cpu")
    _internals.register_device_op_overrides(DEVICE_TYPE, OpenRegDeviceOpOverrides())
    _internals.register_backend_for_device(
        DEVICE_TYPE, _internals.CUDACombinedScheduling, TritonWrapper
    )
