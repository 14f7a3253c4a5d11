"""``mode="reduce-overhead"``: compiled graphs that replay captures of their launches.

Note [Graphs of compiled functions]
    Inductor calls a policy for each compiled graph, including those from its caches. Its own
    implementation supports only CUDA; this policy replaces the function of a compiled graph on this
    device type.

    The first call with given sizes runs without a graph: some operators of the fallback need it.
    The second is captured, and it and all further ones replay. A capture reads and writes fixed
    addresses. Parameters are read where they are, and a capture is for these addresses; other
    inputs are copied into tensors of the capture. Results are copied out of it after the replay, so
    they stay valid. Between two replays a capture holds nothing that anybody needs, so all captures
    of a device share a pool of memory, and their replays run one after the other, on whatever
    streams.

    Graphs that cannot be captured run as in the default mode, with the reason in
    ``torch._dynamo.utils.counters["openreg_graphs"]``.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torch_openreg import _C, openreg
from torch_openreg.extras.inductor import _internals
from torch_openreg.extras.inductor._devices import DEVICE_TYPE
from torch_openreg.extras.inductor._kernels import empty_strided

__all__ = ["GraphedFunction", "OpenRegGraphPolicy", "count"]

_graphs: Any = openreg  # to which another extra adds Graph and what belongs to it

# Of one compiled graph, for sizes and addresses of parameters; each holds memory.
_MAX_CAPTURES = 32

_Function = Callable[[list[Any]], Any]


def count(what: str) -> None:
    """Counts an event in ``torch._dynamo.utils.counters``."""
    _internals.counters["openreg_graphs"][what] += 1


class OpenRegGraphPolicy(_internals.CUDAGraphPolicy):
    """Gives compiled graphs on our devices their captures, and leaves others to Inductor."""

    def should_wrap(self, compiled_graph: Any) -> bool:
        """Returns whether Inductor's own way of capturing is for a compiled graph."""
        if (
            not isinstance(compiled_graph, _internals.CompiledFxGraph)
            or DEVICE_TYPE not in compiled_graph.device_types
            or not _internals.config.triton.cudagraphs
        ):
            return True
        reason = _reason_against(compiled_graph)
        if reason is None:
            function = compiled_graph.current_callable
            assert function is not None
            compiled_graph.current_callable = GraphedFunction(
                function,
                next(iter(compiled_graph.device_idxs)),
                compiled_graph.fx_kwargs["static_input_idxs"],
                compiled_graph.mutated_input_idxs,
                compiled_graph.fx_kwargs["is_backward"],
            )
        else:
            count(f"skipped: {reason}")
        return False


def _reason_against(compiled_graph: _internals.CompiledFxGraph) -> str | None:
    if len(compiled_graph.device_idxs) != 1:
        return f"it uses {len(compiled_graph.device_idxs)} devices"
    # Inductor's default reason is that the device is not CUDA.
    reason = compiled_graph.disabled_cudagraphs_reason
    if reason is not None and _internals.NO_CUDA_DEVICE not in reason:
        return str(reason)
    return None


class _Shared:
    """The state that the captures of one device share. Its lock guards all of it."""

    def __init__(self, device: int) -> None:
        self.lock = threading.Lock()
        self.pool = _graphs.graph_pool_handle()
        # Where parameters are that a forward graph reads in place: its backward graph may, too.
        # Weak, so that a later tensor at the same address is not taken for one of them.
        self.static_storages: set[StorageWeakRef] = set()
        self._device = device
        self._replayed = openreg.Event()
        self._stream = openreg.current_stream(device)
        self._stream_id = _C._current_stream(device)

    def begin_replay(self) -> openreg.Stream:
        """Returns the current stream, ordered after the last replay."""
        stream_id = _C._current_stream(self._device)
        if stream_id != self._stream_id:
            self._stream = openreg.current_stream(self._device)
            self._stream_id = stream_id
            self._stream.wait_event(self._replayed)
        return self._stream

    def end_replay(self) -> None:
        """Marks where the next replay may begin."""
        self._replayed.record(self._stream)


_shared: dict[int, _Shared] = {}
_shared_lock = threading.Lock()


def _shared_of(device: int) -> _Shared:
    with _shared_lock:
        if device not in _shared:
            _shared[device] = _Shared(device)
        return _shared[device]


class GraphedFunction:
    """The function of a compiled graph, which replays captures of itself."""

    def __init__(
        self,
        function: _Function,
        device: int,
        static_inputs: Sequence[int] | None,
        mutated_inputs: Collection[int],
        is_backward: bool,
    ) -> None:
        """Takes the function and Inductor's information about its inputs, by position.

        Args:
            function: Takes inputs as a list, which it empties.
            device: Where all its tensors are.
            static_inputs: Inputs whose addresses do not change, according to Inductor.
            mutated_inputs: Inputs that it changes.
            is_backward: Whether Inductor calls results of the forward graph static.
        """
        self._function = function
        self._device = device
        self._static = tuple(static_inputs or ())
        self._mutated = tuple(mutated_inputs)
        self._is_backward = is_backward
        self._has_been_called = False
        self._has_numbers = False
        self._is_skipped = False
        # None between the first call and the capture.
        self._captures: dict[Any, _Capture | None] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        """Runs the function, in one of its ways."""
        if self._is_skipped or _C._is_stream_capturing(*_C._current_stream(self._device)):
            return self._function(inputs)
        if not self._has_been_called:
            self._begin(inputs)
            return self(inputs)
        key = self._key_of(inputs)
        capture = self._captures.get(key)
        if capture is not None:
            return capture.replay(inputs)
        if key in self._captures:
            return self._captured(key, inputs)
        if len(self._captures) >= _MAX_CAPTURES:
            count(f"called without a capture: it has {_MAX_CAPTURES}, for other sizes or addresses")
            return self._function(inputs)
        result = self._function(inputs)
        if all(_is_on(one, self._device) for one in result):
            self._captures.setdefault(key)  # another thread may have captured it by now
        else:
            self._skip("it returns a tensor that is not on its device")
        return result

    def _begin(self, inputs: Sequence[Any]) -> None:
        """Inspects the inputs of the first call. Guards see to it that later ones are alike."""
        shared = _shared_of(self._device)
        with shared.lock:
            if self._has_been_called or self._is_skipped:
                return
            if not all(_is_on(one, self._device) for one in inputs):
                self._skip("an input is neither a number nor a tensor on its device")
                return
            self._has_numbers = any(not isinstance(one, torch.Tensor) for one in inputs)
            storages = {
                i: StorageWeakRef(inputs[i].untyped_storage())
                for i in self._static
                if isinstance(inputs[i], torch.Tensor)
            }
            if self._is_backward:
                known = shared.static_storages
                storages = {i: one for i, one in storages.items() if one in known}
            else:
                living = {one for one in shared.static_storages if not one.expired()}
                shared.static_storages = living.union(storages.values())
            self._static = tuple(storages)
            self._has_been_called = True

    def _key_of(self, inputs: Sequence[Any]) -> Any:
        addresses = tuple([inputs[i].data_ptr() for i in self._static])
        if not self._has_numbers:
            return addresses
        return addresses, tuple(
            (one.shape, one.stride()) if isinstance(one, torch.Tensor) else one for one in inputs
        )

    def _skip(self, reason: str) -> None:
        self._is_skipped = True
        self._captures.clear()
        count(f"skipped: {reason}")

    def _captured(self, key: Any, inputs: list[Any]) -> Any:
        # No thread may wait for a device while one of its streams is capturing.
        with _shared_of(self._device).lock:
            capture = self._captures.get(key)  # another thread's, maybe
            if capture is None and not self._is_skipped:
                openreg.synchronize(self._device)  # earlier errors are raised here
                capture = self._captures[key] = self._capture(inputs)
        return self._function(inputs) if capture is None else capture.replay(inputs)

    def _capture(self, inputs: Sequence[Any]) -> "_Capture | None":
        try:
            capture = _Capture(self, inputs)
        except RuntimeError as error:
            self._skip(f"it cannot be captured: {str(error).splitlines()[0]}")
            return None
        count("captured")
        return capture


def _is_on(value: Any, device: int) -> bool:
    """Whether a replay can take or return a value: a tensor on the device, a number, or None."""
    if not isinstance(value, torch.Tensor):
        return value is None or isinstance(value, (int, float))
    return value.device.type == DEVICE_TYPE and value.device.index == device


class _Capture:
    """One capture: its graph, and the tensors that the graph reads and writes.

    The constructor's caller holds the lock of the state that the device's captures share.
    """

    def __init__(self, graphed: GraphedFunction, inputs: Sequence[Any]) -> None:
        device, static, mutated = graphed._device, graphed._static, graphed._mutated
        self._shared = _shared_of(device)
        self._streams = {openreg.current_stream(device)}  # that the allocator has
        copied = [
            i
            for i, one in enumerate(inputs)
            if isinstance(one, torch.Tensor) and i not in set(static)
        ]
        own: list[Any] = list(inputs)
        for i in copied:
            one = inputs[i]
            own[i] = empty_strided(tuple(one.shape), one.stride(), one.dtype, device)
        self._targets = [_written_part(own[i]) for i in copied]
        self._copied = [
            (i, target is not own[i]) for i, target in zip(copied, self._targets, strict=True)
        ]
        self._returned = [place for place, i in enumerate(copied) if i in set(mutated)]
        self._graph = _graphs.Graph()
        with (
            openreg.device(device),
            _graphs.graph(self._graph, pool=self._shared.pool, capture_error_mode="thread_local"),
        ):
            outputs = graphed._function(list(own))
        # A backward graph may overwrite saved tensors, which are not used again.
        kept = {*static, *mutated} if graphed._is_backward else range(len(own))
        tensors = {i: own[i] for i in kept if isinstance(own[i], torch.Tensor)}
        self._outputs = _Outputs(outputs, tensors, device)

    def replay(self, inputs: list[Any]) -> Any:
        """Runs the function on inputs. Gradients are off, as Inductor's functions count on."""
        shared = self._shared
        # First: if this fails, nothing has been changed or drawn yet.
        copies = self._outputs.allocated()
        with shared.lock:
            stream = shared.begin_replay()
            if stream not in self._streams:
                self._streams.add(stream)
                for target in self._targets:
                    target.record_stream(stream)
            sources = [
                _written_part(inputs[i]) if is_part else inputs[i] for i, is_part in self._copied
            ]
            try:
                _copy(self._targets, sources)
                self._graph.replay()
                self._outputs.copy_to(copies)
                _copy(
                    [sources[place] for place in self._returned],
                    [self._targets[place] for place in self._returned],
                )
            finally:
                shared.end_replay()
        results = self._outputs.results(copies, inputs)
        inputs.clear()
        return results


def _written_part(tensor: torch.Tensor) -> torch.Tensor:
    """The elements to write so that all are written, as dimensions may repeat them."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    elif targets:
        torch._foreach_copy_(targets, sources)


@dataclass(frozen=True)
class _View:
    """A result in the storage of another tensor.

    Attributes:
        place: its position among the results.
        base: the position of the other one.
        dtype, shape, stride: its own.
        offset_bytes: the offset in a copied storage, or from the start of an input.
    """

    place: int
    base: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset_bytes: int

    def on(self, base: torch.Tensor, begin_bytes: int) -> torch.Tensor:
        empty = torch.empty(0, dtype=self.dtype, device=base.device)
        offset = (begin_bytes + self.offset_bytes) // self.dtype.itemsize
        return empty.set_(base.untyped_storage(), offset, self.shape, self.stride)


def _view(place: int, one: torch.Tensor, base: int, begin_bytes: int) -> _View:
    offset_bytes = _offset_bytes(one) - begin_bytes
    return _View(place, base, one.dtype, tuple(one.shape), one.stride(), offset_bytes)


class _Outputs:
    """The results of a capture, and how they are copied for callers.

    Keeps no references to inputs, so that replaced parameters are freed.
    """

    def __init__(
        self, outputs: Sequence[Any], inputs: Mapping[int, torch.Tensor], device: int
    ) -> None:
        """Takes results, and by position the inputs that may be results, or parts of them."""
        self._device = device
        self._values = [None if isinstance(one, torch.Tensor) else one for one in outputs]
        # Results that are inputs: the positions of both.
        self._same: list[tuple[int, int]] = []
        self._views_of_inputs: list[_View] = []
        # All others are on storages of the capture. A result that has its storage alone is copied
        # as it is, and else the bytes of the storage are.
        self._sources: list[torch.Tensor] = []
        self._alone: list[tuple[int, int]] = []
        self._views: list[_View] = []
        positions = {id(one): i for i, one in inputs.items()}
        storages = {_storage_of(one): i for i, one in inputs.items()}
        found: dict[int, list[int]] = {}
        for place, one in enumerate(outputs):
            if not isinstance(one, torch.Tensor):
                continue
            base = storages.get(_storage_of(one))
            if id(one) in positions:
                self._same.append((place, positions[id(one)]))
            elif base is not None:
                view = _view(place, one, base, _offset_bytes(inputs[base]))
                self._views_of_inputs.append(view)
            else:
                found.setdefault(_storage_of(one), []).append(place)
        for places in found.values():
            first = outputs[places[0]]
            if len(places) == 1 and _is_all_of_its_storage(first):
                self._alone.append((places[0], len(self._sources)))
                self._sources.append(first)
            else:
                self._views += [_view(i, outputs[i], len(self._sources), 0) for i in places]
                self._sources.append(_bytes_of(first))
        self._layouts = [(tuple(one.shape), one.stride(), one.dtype) for one in self._sources]

    def allocated(self) -> list[torch.Tensor]:
        """Returns memory of the caller's for all that the capture writes."""
        return [empty_strided(*layout, self._device) for layout in self._layouts]

    def copy_to(self, copies: list[torch.Tensor]) -> None:
        """Enqueues the copies of a replay's results."""
        _copy(copies, self._sources)

    def results(self, copies: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[Any]:
        """Returns copies, and the caller's inputs or views of these where those are results."""
        results = list(self._values)
        for place, source in self._alone:
            results[place] = copies[source]
        for view in self._views:
            results[view.place] = view.on(copies[view.base], 0)
        for place, i in self._same:
            results[place] = inputs[i]
        for view in self._views_of_inputs:
            given = inputs[view.base]
            results[view.place] = view.on(given, _offset_bytes(given))
        return results


def _storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _offset_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def _is_all_of_its_storage(tensor: torch.Tensor) -> bool:
    return (
        tensor.storage_offset() == 0
        and torch.ops.aten.is_non_overlapping_and_dense(tensor)
        and tensor.nbytes == tensor.untyped_storage().nbytes()
    )


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage."""
    storage = tensor.untyped_storage()
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))
