"""Graphs: work captured from a stream once and replayed many times."""

import os
from typing import Any, ClassVar, Literal, get_args

import torch
from torch._C import _acceleratorGraph
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_openreg import _C
from torch_openreg._torch_release import HAS_OPTIMIZER_CHECK
from torch_openreg.openreg._utils import DEVICE_TYPE, MODULE_NAME, _boolean, _named, _pool_id
from torch_openreg.openreg.devices import current_device, synchronize
from torch_openreg.openreg.events import _check_stream
from torch_openreg.openreg.initialization import _lazy_init
from torch_openreg.openreg.memory import empty_cache, empty_host_cache
from torch_openreg.openreg.streams import Stream, is_current_stream_capturing
from torch_openreg.openreg.streams import stream as _select_stream

__all__ = ["CUDAGraph", "CaptureErrorMode", "Graph", "PoolId", "graph", "graph_pool_handle"]

PoolId = tuple[int, int]

# Which threads may not make calls that no graph repeats; see Graph.capture_begin.
CaptureErrorMode = Literal["default", "global", "thread_local", "relaxed"]


class _InputTracker(TorchDispatchMode):
    """While it is active, notes which storages captured operators use and did not make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inputs: dict[int, tuple[StorageWeakRef, str]] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_current_stream_capturing():
            for tensor in _tensors((args, kwargs)):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._made:
                    text = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}, used by {func}"
                    self._inputs.setdefault(storage._cdata, (StorageWeakRef(storage), text))
            for tensor in _tensors(result):
                key = tensor.untyped_storage()._cdata
                if key not in self._inputs:
                    self._made.add(key)
        return result

    def check(self) -> None:
        """Raises RuntimeError if one of the storages was freed."""
        gone = [text for reference, text in self._inputs.values() if reference.expired()]
        if gone:
            raise RuntimeError(
                f"Graph.replay: expected the tensors of the capture to be alive, got {len(gone)} "
                "whose memory was freed:\n  " + "\n  ".join(gone)
            )


def _tensors(values: Any) -> list[torch.Tensor]:
    return [
        one
        for one in tree_leaves(values)
        if isinstance(one, torch.Tensor)
        and one.layout == torch.strided
        and (one.device.type == DEVICE_TYPE or (one.device.type == "cpu" and one.is_pinned()))
    ]


class Graph(_acceleratorGraph):
    """A capture of a stream's work, to be replayed.

    While a stream is capturing, submitted work is recorded and not run. :meth:`replay` runs it on
    the same addresses: copy new data into the tensors that the captured work reads, and read the
    results from those that it writes. Use the context manager :class:`graph` to capture.

    Args:
        keep_graph: Whether to keep the captured graph, for :meth:`instantiate` and
            :meth:`debug_dump`. The first replay then instantiates it.

    Example:
        >>> g = torch.openreg.Graph()
        >>> with torch.openreg.graph(g):
        ...     y = x * 2
        >>> x.fill_(3)
        >>> g.replay()  # y is 6
    """

    def __new__(cls, keep_graph: bool = False) -> "Graph":
        """Makes a graph without a capture."""
        name = "CUDAGraph" if DEVICE_TYPE == "cuda" else "Graph"
        _boolean(f"torch.openreg.{name}", "keep_graph", keep_graph)
        _lazy_init()
        return super().__new__(cls, keep_graph)

    def __init__(self, keep_graph: bool = False) -> None:
        """Makes a graph without a capture."""
        super().__init__(keep_graph)
        self._inputs: _InputTracker | None = None
        self._is_tracking = False

    def capture_begin(
        self,
        pool: PoolId | None = None,
        capture_error_mode: CaptureErrorMode = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begins to capture the current stream.

        Args:
            pool: The memory pool to share with other graphs, from :func:`graph_pool_handle` or
                another graph's :meth:`pool`; None for a new pool.
            capture_error_mode: Which threads may not make calls that no graph repeats, such as
                waiting for a stream: ``"global"`` or ``"default"``, all; ``"thread_local"``,
                this one; ``"relaxed"``, none.
            check_input_liveness: Whether each replay checks that the tensors which the captured
                operators used but did not create are still alive. Makes the capture slower.

        Raises:
            RuntimeError: The graph has a capture already, or the current stream is a default stream
                or is capturing.
            TypeError: ``pool`` is not the id of a memory pool.
            ValueError: The mode does not exist.
        """
        if pool is not None:
            _pool_id("Graph.capture_begin", "pool", pool)
        modes = get_args(CaptureErrorMode)
        if capture_error_mode not in modes:
            raise ValueError(
                f"Graph.capture_begin: expected a capture_error_mode of {', '.join(modes)}, "
                f"got {capture_error_mode!r}"
            )
        super().capture_begin(pool=pool, capture_error_mode=capture_error_mode)
        self._inputs = _InputTracker() if check_input_liveness else None
        if self._inputs is not None:
            self._inputs.__enter__()  # type: ignore[no-untyped-call]
            self._is_tracking = True

    def _stop_tracking(self) -> None:
        if self._is_tracking and self._inputs is not None:
            self._is_tracking = False
            self._inputs.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def capture_end(self) -> None:
        """Ends the capture. The current stream must be the one on which it began.

        Raises:
            RuntimeError: The capture contains a call that cannot be captured, or a stream was
                forked and not joined. The graph can then capture again.
        """
        self._stop_tracking()
        super().capture_end()

    def instantiate(self) -> None:
        """Makes the captured graph ready for replays, or does so again. For ``keep_graph=True``."""
        super().instantiate()

    def replay(self) -> None:
        """Enqueues all captured work on the current stream, and returns.

        Replays run one after the other, on whatever streams. A failed kernel is reported like other
        errors of kernels.

        Raises:
            RuntimeError: No capture was made, or one of its tensors was freed; see
                ``check_input_liveness``.
        """
        if self._inputs is not None:
            self._inputs.check()
        super().replay()

    def reset(self) -> None:
        """Drops the capture and frees its memory. Replays that were enqueued still run.

        Tensors that were allocated in the capture keep their memory.
        """
        self._stop_tracking()
        self._inputs = None
        super().reset()

    def pool(self) -> PoolId:
        """Returns the id of the graph's memory pool, to share it with other graphs."""
        return super().pool()

    def enable_debug_mode(self) -> None:
        """Keeps what :meth:`debug_dump` needs. Call it before the capture ends."""
        super().enable_debug_mode()

    def debug_dump(self, debug_path: "str | os.PathLike[str]") -> None:
        """Writes the graph to a Graphviz file: kernels, copies and fills, and their order.

        Args:
            debug_path: The file.

        Raises:
            TypeError: The argument is not a path.
            RuntimeError: The graph was not kept, or the file cannot be written.
        """
        if not isinstance(debug_path, (str, os.PathLike)):
            raise TypeError(f"Graph.debug_dump: expected a path, got {debug_path!r}")
        super().debug_dump(os.fspath(debug_path))


# The name in torch.cuda, for programs that look it up in the module of a device.
CUDAGraph = Graph


def graph_pool_handle() -> PoolId:
    """Returns the id of a new memory pool, for graphs that share one."""
    return _C._create_pool_id(False)


class graph:  # a context manager, named as torch.cuda's
    """Context manager that captures what its body submits into a graph.

    It waits for the current device, frees cached memory, and selects a stream that captures until
    the end of the body. If the body raises, the capture is discarded.

    Args:
        openreg_graph: The graph that receives the capture.
        pool: See :meth:`Graph.capture_begin`.
        stream: The stream to capture; None for one that all such captures on the current
            device share.
        capture_error_mode: See :meth:`Graph.capture_begin`.
        check_input_liveness: See :meth:`Graph.capture_begin`.

    Raises:
        TypeError: ``openreg_graph`` is not a graph, or ``stream`` is not a stream.
        ValueError: The stream belongs to another device type.
    """

    _default_streams: ClassVar[dict[int, Stream]] = {}  # per device

    def __init__(
        self,
        openreg_graph: Graph,
        pool: PoolId | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: CaptureErrorMode = "global",
        *,
        check_input_liveness: bool = False,
    ) -> None:
        """Stores the arguments; entering begins the capture."""
        if not callable(getattr(openreg_graph, "capture_begin", None)):
            raise TypeError(
                f"{_named('torch.openreg.graph')}: expected a {MODULE_NAME}.Graph as "
                f"openreg_graph, got {openreg_graph!r}"
            )
        if stream is not None:
            _check_stream("torch.openreg.graph", stream)
        else:
            device = current_device()
            if device not in graph._default_streams:
                graph._default_streams[device] = Stream(device)
            stream = graph._default_streams[device]
        self.openreg_graph = openreg_graph
        self.pool = pool
        self.capture_stream = stream
        self.capture_error_mode = capture_error_mode
        self.check_input_liveness = check_input_liveness
        self._selection = _select_stream(stream)

    def __enter__(self) -> None:
        """Begins the capture."""
        synchronize()
        empty_cache()
        empty_host_cache()
        self._selection.__enter__()
        try:
            self.openreg_graph.capture_begin(
                pool=self.pool,
                capture_error_mode=self.capture_error_mode,
                check_input_liveness=self.check_input_liveness,
            )
        except BaseException:
            self._selection.__exit__()
            raise

    def __exit__(self, error: type[BaseException] | None, *exc_info: Any) -> None:
        """Ends the capture."""
        try:
            if error is None:
                self.openreg_graph.capture_end()
            else:
                # The body's own error is the one to report.
                self.openreg_graph.reset()
        finally:
            self._selection.__exit__(error, *exc_info)


def _check_optimizers() -> None:
    """Has torch's check of optimizers refuse captures on this device.

    A step that is captured without ``capturable`` counts itself once, on the host. Before torch
    2.15, the check is for CUDA and XPU only.
    """
    if DEVICE_TYPE == "cuda" or HAS_OPTIMIZER_CHECK:
        return
    optimizer: Any = torch.optim.Optimizer
    check_others = optimizer._accelerator_graph_capture_health_check

    def check(self: Any) -> None:
        check_others(self)
        if torch.compiler.is_compiling() or not is_current_stream_capturing():
            return
        if not all(group["capturable"] for group in self.param_groups):
            raise RuntimeError(
                f"Attempting {DEVICE_TYPE.upper()} graph capture of step() for an instance of "
                f"{type(self).__name__} but param_groups' capturable is False."
            )

    optimizer._accelerator_graph_capture_health_check = check


_check_optimizers()
