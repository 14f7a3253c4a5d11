"""Bases that ``torch._C`` has in builds with CUDA, for the classes of ``torch.cuda``."""

import threading
import weakref
from typing import Any, ClassVar, Self

import torch
from torch._C import _acceleratorGraph

from torch_openreg import _C, _torch_release
from torch_openreg.extras.graph.graphs import graph_pool_handle
from torch_openreg.openreg._utils import DEVICE_TYPE
from torch_openreg.openreg.events import Event

__all__ = ["SUPPLIED", "handle_of", "stream_of_handle"]

# As the bindings name a stream: stream_id, device_index, device_type.
_StreamId = tuple[int, int, int]


def handle_of(stream: _StreamId) -> int:
    """Returns the number of a stream in CUDA's libraries: 0 is the default stream."""
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
            TypeError: The argument is not a generator.
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
        """Raises NotImplementedError: ``cudaGraph_t`` does not exist.

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
        """Raises NotImplementedError: ``cudaGraphExec_t`` does not exist."""
        raise NotImplementedError(
            "CUDAGraph.raw_cuda_graph: expected a graph of CUDA's driver, got one of "
            "torch_openreg; keep_graph=True and debug_dump() show what is in it"
        )


class CudaGraphBaseWithHooks(CudaGraphBase):
    """The same since torch 2.14, whose ``torch.cuda.CUDAGraph`` ends a capture in two steps."""

    _has_graph_exec: bool
    _is_ending: bool  # between the two steps
    _retained_pools: "dict[tuple[int, int], MemPoolBase]"
    _of_thread: ClassVar = threading.local()  # the graph that this thread captures

    def __new__(cls, keep_graph: bool = False) -> Self:
        """Makes a graph without a capture."""
        graph = super().__new__(cls, keep_graph)
        graph._has_graph_exec = False
        graph._is_ending = False
        graph._retained_pools = {}
        return graph

    def capture_begin(
        self, pool: tuple[int, int] | None = None, capture_error_mode: Any = "global"
    ) -> None:
        """Begins a capture on the current stream."""
        super().capture_begin(pool, capture_error_mode)
        self._of_thread.graph = weakref.ref(self)

    def capture_end_pre(self) -> None:
        """Ends the capture, and instantiates a graph that is not kept."""
        self._of_thread.graph = _no_graph
        super().capture_end()
        self._has_graph_exec = not self._keeps_graph
        self._is_ending = True

    def capture_end_post(self) -> None:
        """Ends the second step. A graph that is not kept was released when it was instantiated."""
        self._is_ending = False

    def instantiate(self) -> None:
        """Instantiates the graph; nothing at a capture's end, whose first step has done it.

        Raises:
            RuntimeError: A program calls it, and the graph has not captured or is not kept.
        """
        if self._keeps_graph or not self._is_ending:
            super().instantiate()
        self._has_graph_exec = True

    def enable_debug_mode(self) -> None:
        """Keeps the graph."""
        super().enable_debug_mode()
        self._keeps_graph = True

    def reset(self) -> None:
        """Deletes the graph."""
        super().reset()
        self._has_graph_exec = False
        self._is_ending = False
        self._retained_pools.clear()

    def pools(self) -> list[tuple[int, int]]:
        """Returns the pools with the graph's memory: its own, and those used in the capture."""
        return [super().pool(), *self._retained_pools]

    def _retain_pool(self, pool: tuple[int, int]) -> None:
        self._retained_pools[pool] = _pools[pool]

    @classmethod
    def get_currently_capturing_graph(cls) -> "CudaGraphBaseWithHooks":
        """Returns the graph whose capture this thread has begun.

        Raises:
            RuntimeError: There is none.
        """
        graph = getattr(cls._of_thread, "graph", _no_graph)()
        if not isinstance(graph, CudaGraphBaseWithHooks):
            raise RuntimeError(
                "CUDAGraph.get_currently_capturing_graph: expected a capture of a graph that this "
                "thread has begun, got none"
            )
        return graph


def _no_graph() -> None:
    return None


# Pools that programs have, by their ids.
_pools: "weakref.WeakValueDictionary[tuple[int, int], MemPoolBase]" = weakref.WeakValueDictionary()


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
        _pools[self.id] = self

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
    "_CUDAGraph": CudaGraphBaseWithHooks if _torch_release.HAS_GRAPH_HOOKS else CudaGraphBase,
    "_MemPool": MemPoolBase,
    "_graph_pool_handle": graph_pool_handle,
}
