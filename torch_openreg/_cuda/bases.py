"""Bases that ``torch._C`` has in builds with CUDA, for the classes of ``torch.cuda``."""

from typing import Any, Self

import torch
from torch._C import _acceleratorGraph

from torch_openreg import _C
from torch_openreg.openreg._utils import DEVICE_TYPE
from torch_openreg.openreg.events import Event
from torch_openreg.openreg.graphs import graph_pool_handle

__all__ = ["SUPPLIED", "handle_of", "stream_of_handle"]

# As the bindings name a stream: stream_id, device_index, device_type.
_StreamId = tuple[int, int, int]


def handle_of(stream: _StreamId) -> int:
    """Returns the number by which CUDA's libraries know a stream: 0 is the default stream."""
    stream_id, device_index, device_type = stream
    if stream_id == 0:
        return 0
    found = torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    return int(found.native_handle)  # type: ignore[attr-defined]


def stream_of_handle(handle: int, device: int) -> _StreamId:
    """Returns the stream with a number; the reverse of :func:`handle_of`."""
    return _C._default_stream(device) if handle == 0 else _C._external_stream(handle, device)


class CudaStreamBase(torch.Stream):
    """What ``torch.cuda.Stream`` is derived from."""

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> Self:
        """Takes a stream from the pool, or wraps the one that the arguments name."""
        torch.cuda._lazy_init()
        if stream_ptr != 0:
            name = stream_of_handle(stream_ptr, -1)
        elif device_type != 0:
            name = (stream_id, device_index, device_type)
        else:
            name = _C._stream_from_pool(priority, -1)
        return super().__new__(cls, stream_id=name[0], device_index=name[1], device_type=name[2])

    @property
    def cuda_stream(self) -> int:
        """The stream's handle as a number, 0 for the default stream."""
        return handle_of((self.stream_id, self.device_index, self.device_type))

    @property
    def priority(self) -> int:
        """The priority; a lower number is a higher one."""
        return _C._stream_priority(self.stream_id, self.device_index, self.device_type)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns the least and the greatest priority."""
        return _C._stream_priority_range()

    def __eq__(self, other: object) -> bool:
        """Whether the other object is the same stream."""
        return isinstance(other, torch.Stream) and (
            (self.stream_id, self.device_index, self.device_type)
            == (other.stream_id, other.device_index, other.device_type)
        )

    __hash__ = torch.Stream.__hash__


class CudaEventBase(Event):
    """What ``torch.cuda.Event`` is derived from."""

    _is_external: bool

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Self:
        """Creates an event."""
        self = super().__new__(cls, enable_timing, blocking, interprocess)
        self._is_external = external
        return self

    def record(self, stream: torch.Stream | None = None) -> None:
        """Records the event in a stream.

        Raises:
            NotImplementedError: The event is external and the stream captures: a graph of openreg
                has no nodes that record an event anew at each replay.
        """
        if self._is_external and torch.cuda.is_current_stream_capturing():
            raise NotImplementedError(
                "torch.cuda.Event.record: expected external=False in a capture, got True; graphs "
                "of torch_openreg have no event nodes"
            )
        super().record(stream)

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """The device; None before the event is bound to one."""
        return None if self.event_id == 0 else super().device

    @property
    def cuda_event(self) -> int:
        """The event's handle as a number, 0 before it is recorded."""
        return int(self.event_id)


class CudaGraphBase(_acceleratorGraph):
    """What ``torch.cuda.CUDAGraph`` is derived from."""

    _keeps_graph: bool

    def __new__(cls, keep_graph: bool = False) -> Self:
        """Makes a graph without a capture."""
        torch.cuda._lazy_init()
        graph = super().__new__(cls, keep_graph)
        graph._keeps_graph = keep_graph
        return graph

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Does nothing: a graph finds the generators that its kernels draw from by itself.

        Raises:
            TypeError: The argument is no generator.
            ValueError: It is one of another device type.
        """
        operation = "CUDAGraph.register_generator_state"
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"{operation}: expected a torch.Generator, got {generator!r}")
        if generator.device.type != DEVICE_TYPE:
            raise ValueError(
                f"{operation}: expected a generator of a {DEVICE_TYPE} device, got one of "
                f"{generator.device}"
            )

    def raw_cuda_graph(self) -> int:
        """Raises NotImplementedError: there is no ``cudaGraph_t``.

        Raises:
            RuntimeError: On CUDA, too, the graph would not have one.
        """
        if not self._keeps_graph:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized "
                "with keep_graph=true"
            )
        return self.raw_cuda_graph_exec()

    def raw_cuda_graph_exec(self) -> int:
        """Raises NotImplementedError: there is no ``cudaGraphExec_t``."""
        raise NotImplementedError(
            "CUDAGraph.raw_cuda_graph: expected a graph of CUDA's driver, got one of "
            "torch_openreg; keep_graph=True and debug_dump() show what is in it"
        )


class MemPoolBase:
    """What ``torch.cuda.MemPool`` is derived from: a private pool of the current device."""

    def __init__(
        self,
        allocator: object = None,
        is_user_created: bool = True,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        """Makes an empty pool.

        Raises:
            NotImplementedError: there is an allocator.
        """
        del is_user_created
        if allocator is not None:
            raise NotImplementedError(
                f"torch.cuda.MemPool: expected allocator=None, got {allocator!r}; torch_openreg "
                "has one allocator"
            )
        torch.cuda._lazy_init()
        self._pool = _C._MemPool(use_on_oom, no_split)

    @property
    def id(self) -> tuple[int, int]:
        """The pool's id."""
        return self._pool.id

    @property
    def device(self) -> int:
        """The index of the device whose memory it is."""
        return self._pool.device

    @property
    def allocator(self) -> None:
        """The pluggable allocator: there is none."""
        return

    def use_count(self) -> int:
        """Returns how many use the pool."""
        return self._pool.use_count()


SUPPLIED: dict[str, Any] = {
    "_CudaStreamBase": CudaStreamBase,
    "_CudaEventBase": CudaEventBase,
    "_CUDAGraph": CudaGraphBase,
    "_MemPool": MemPoolBase,
    "_graph_pool_handle": graph_pool_handle,
}
