"""The tensors that a capture found and a replay needs."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_openreg.openreg._utils import DEVICE_TYPE
from torch_openreg.openreg.streams import is_current_stream_capturing

__all__: list[str] = []


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
