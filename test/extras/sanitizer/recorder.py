"""Reports a real program's operations to the model (model.py), without the sanitizer.

Operators come from a dispatch mode and their schemas, allocations and frees from the allocator's
history, and the calls that order work from the classes of streams and events. Backward passes,
graphs and threads are beyond it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from extras.sanitizer.model import Memory, Model, Operand, Work
from extras.sanitizer.programs import _module, device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_openreg import _C

__all__ = ["follow"]

# Operators that read only the sizes and dtype of their arguments.
_READS_METADATA = (
    *("_like", "new_", "empty", "resize_", "record_stream", "set_", "is_pinned"),
    "_has_compatible_shallow_copy_type",  # of an assignment to Tensor.data
)
_WRITES_NOTHING = ("empty", "new_empty")
# Facts that are not in the schemas.
_WRITES_TOO = {"native_batch_norm": ("running_mean", "running_var")}
# Operators whose result, or whose size, the host needs.
_GIVES_THE_HOST = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")

# Operators that run on the host if that is where the tensor is that they write.
_WRITES_HOST_TENSORS = ("index_put_", "_index_put_impl_")


def _bytes_of(tensor: torch.Tensor) -> frozenset[int]:
    """The bytes of a tensor, by their place in its storage."""
    places = {tensor.storage_offset()}
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = {place + index * stride for place in places for index in range(size)}
    width = tensor.element_size()
    return frozenset(place * width + byte for place in places for byte in range(width))


def _tensors(values: Any) -> list[torch.Tensor]:
    tensors = (one for one in tree_leaves(values) if isinstance(one, torch.Tensor))
    return [part for one in tensors for part in _parts(one)]


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors with memory that one consists of."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout is torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return (tensor,)


class _Recorder(TorchDispatchMode):
    """Follows a program on the calling thread."""

    def __init__(self, filename: str) -> None:
        super().__init__()
        self.model = Model()
        self._filename = filename
        self._memory: dict[tuple[Any, int], Memory] = {}
        self._events: dict[int, tuple[Any, frozenset[Work]]] = {}  # with the event, to keep its id
        self._take_history()

    # --- Memory

    @staticmethod
    def _take_history() -> list[dict[str, Any]]:
        history = [
            one for index in range(_module.device_count()) for one in _C._memory_history(index)
        ]
        _C._record_memory_history("all", None, False, 1 << 20, True, [])
        return history

    def catch_up(self) -> None:
        """Reports allocations and frees since the last operation."""
        for entry in self._take_history():
            key = (entry["device"], entry["addr"])
            if entry["action"] == "alloc":
                owner = (entry["device"], entry["stream"])
                self._memory[key] = self.model.allocate(self._line(), owner, entry["size"])
            elif entry["action"] == "free_requested" and key in self._memory:
                self.model.free(self._line(), self._memory.pop(key))

    def _operand(self, tensor: torch.Tensor, is_write: bool) -> Operand:
        storage = tensor.untyped_storage()
        key = (tensor.device.index, storage.data_ptr())
        if key not in self._memory:  # pinned, or older than the recorder
            self._memory[key] = self.model.allocate(self._line(), None, storage.nbytes())
        return Operand(self._memory[key], _bytes_of(tensor), is_write)

    # --- Operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.catch_up()
        result = func(*args, **kwargs)
        self.catch_up()
        self._tell(func, args, kwargs, result)
        return result

    def _tell(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        schema, name = func._schema, func._schema.name.removeprefix("aten::")
        if name == "record_stream":
            memory = self._operand(args[0], is_write=False).memory
            memory.announced.add(self._key(args[1]))
            return
        values = dict(zip([one.name for one in schema.arguments], args, strict=False)) | kwargs
        written, read = [], []
        for argument in schema.arguments:
            is_write = argument.name in _WRITES_TOO.get(name, ()) or (
                argument.alias_info is not None and argument.alias_info.is_write
            )
            (written if is_write else read).extend(_tensors(values.get(argument.name)))
        is_view = any(one.alias_info and not one.alias_info.is_write for one in schema.returns)
        if is_view:
            return
        given = {one.untyped_storage()._cdata for one in [*written, *read]}
        for one in _tensors(result):
            if one.untyped_storage()._cdata not in given:
                written.append(one)
                if one.device.type == "cpu" and one.is_pinned():
                    self._memory.pop((None, one.untyped_storage().data_ptr()), None)
        if any(text in name for text in _READS_METADATA):
            read = []
        if name.startswith(_WRITES_NOTHING) or name in ("resize_", "set_", "is_pinned"):
            written = []
        # A number of the host is passed by value.
        read = [one for one in read if one.device.type == device.type or one.dim() > 0]
        self._access(name, values, read, written)

    def _access(
        self,
        name: str,
        values: dict[str, Any],
        read: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> None:
        of_device = [one for one in [*read, *written] if one.device.type == device.type]
        of_host = [one for one in [*read, *written] if one.device.type == "cpu"]
        operands = [
            self._operand(one, is_write)
            for tensors, is_write in ((read, False), (written, True))
            for one in tensors
            if one.numel() > 0 and (one.device.type == device.type or one.is_pinned())
        ]
        if not of_device:
            for operand in operands:
                self.model.host_touches(self._line(), operand)
            return
        stream, line = self._current(of_device[0]), self._line()
        if name in _WRITES_HOST_TENSORS and written[0].device.type == "cpu":
            self._read_and_write_host_tensor(line, stream, read, written[0])
            return
        other = next((one for one in of_device if one.device != of_device[0].device), None)
        if other is not None:
            self.model.wait(stream, self.model.knows(self._current(other)))
        self.model.launch(line, stream, operands)
        if other is not None:
            self.model.wait(self._current(other), self.model.knows(stream))
        is_asynchronous = values.get("non_blocking", False) and (
            all(one.is_pinned() for one in of_host) or of_host[0] in read
        )
        if (of_host and not is_asynchronous) or name in _GIVES_THE_HOST:
            self.model.host_waits(self.model.knows(stream))

    def _read_and_write_host_tensor(
        self, line: Any, stream: Any, read: list[torch.Tensor], written: torch.Tensor
    ) -> None:
        of_device = [one for one in read if one.device.type == device.type]
        self.model.launch(line, stream, [self._operand(one, is_write=False) for one in of_device])
        self.model.host_waits(self.model.knows(stream))
        if written.is_pinned():
            self.model.host_touches(line, self._operand(written, is_write=True))

    # --- Order

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Follows the methods of streams and events."""

        def after(owner: Any, name: str, tell: Callable[..., None]) -> Any:
            original = getattr(owner, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                self.catch_up()
                tell(result, *args, **kwargs)
                return result

            return mock.patch.object(owner, name, call)

        knows, key, model = self._knows, self._key, self.model

        def record(event: Any, stream: Any = None) -> None:
            self._events[id(event)] = (event, model.record(self._key_or_current(stream)))

        def recorded(event: Any) -> frozenset[Work]:
            return self._events.get(id(event), (None, frozenset()))[1]

        def device_done(_: Any, which: Any = None) -> None:
            index = torch.device(which).index if isinstance(which, torch.device) else which
            model.host_waits_for_device(_module.current_device() if index is None else index)

        def if_true(is_true: bool, work: frozenset[Work] | set[Work]) -> None:
            if is_true:
                model.host_waits(work)

        stream, event = _module.Stream, _module.Event
        with ExitStack() as stack:
            for one in (
                after(stream, "wait_stream", lambda _, s, o: model.wait(key(s), knows(o))),
                after(stream, "wait_event", lambda _, s, e: model.wait(key(s), recorded(e))),
                after(stream, "record_event", lambda e, s, *_: record(e, s)),
                after(stream, "synchronize", lambda _, s: model.host_waits(knows(s))),
                after(stream, "query", lambda is_done, s: if_true(is_done, knows(s))),
                after(event, "record", lambda _, e, s=None: record(e, s)),
                after(event, "synchronize", lambda _, e: model.host_waits(recorded(e))),
                after(event, "query", lambda is_done, e: if_true(is_done, recorded(e))),
                after(_module, "synchronize", device_done),
                after(torch.accelerator, "synchronize", device_done),
            ):
                stack.enter_context(one)
            yield

    # ---

    def _line(self) -> int:
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_filename != self._filename:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0

    @staticmethod
    def _key(stream: Any) -> tuple[int, int]:
        return (stream.device_index, stream.native_handle)

    def _key_or_current(self, stream: Any) -> tuple[int, int]:
        return self._key(stream or _module.current_stream())

    def _knows(self, stream: Any) -> set[Work]:
        return self.model.knows(self._key(stream))

    def _current(self, tensor: torch.Tensor) -> tuple[int, int]:
        return self._key(_module.current_stream(tensor.device))


def follow(run: Callable[..., None], *args: Any, filename: str) -> Model:
    """Runs a program and returns the model that has followed it."""
    _module.synchronize()
    recorder = _Recorder(filename)
    try:
        with recorder.patched(), recorder:
            run(*args)
        recorder.catch_up()
    finally:
        _C._record_memory_history(None, None, False, 1, True, [])
        _module.synchronize()
    return recorder.model
