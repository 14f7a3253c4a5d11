"""What ``torch.nn.parallel.comm``, and so ``DataParallel``, asks of ``torch._C``.

It calls these functions for any kind of device, but they are part of torch's builds with CUDA only,
and serve CUDA only: so it is in torch 2.13 to 2.15. Without CUDA they are ours. With CUDA they stay
torch's for what concerns CUDA, and become ours for what concerns openreg. With the first torch
whose functions serve all devices, this module can go.
"""

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._utils import _get_available_device_type

from torch_openreg import openreg
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["provide"]

_CPU_INDEX = -1  # in place of the index of a device


def provide() -> None:
    """Gives ``torch._C`` the functions, beside those that it has."""
    for function in (
        _broadcast,
        _broadcast_coalesced,
        _broadcast_out,
        _gather,
        _gather_out,
        _scatter,
        _scatter_out,
    ):
        theirs = getattr(torch._C, function.__name__, None)
        chosen = function if theirs is None else _by_devices(function, theirs)
        setattr(torch._C, function.__name__, chosen)


def _by_devices(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(ours)
    def choose(*arguments: Any, **options: Any) -> Any:
        types = set(_device_types([*arguments, *options.values()]))
        if not types:
            # Tensors of the CPU, for devices of which only the indices are left. DataParallel
            # takes them to be of this type, which is CUDA where there is a GPU.
            types = {_get_available_device_type()}
        return (ours if DEVICE_TYPE in types else theirs)(*arguments, **options)

    return choose


def _device_types(arguments: Sequence[Any]) -> Iterator[str]:
    """Yields which kinds of device the tensors and streams are of, without the CPU."""
    for argument in arguments:
        if isinstance(argument, (Tensor, torch.Stream)):
            if argument.device.type != "cpu":
                yield argument.device.type
        elif isinstance(argument, (list, tuple)):
            yield from _device_types(argument)


def _device(index: int) -> torch.device:
    return torch.device("cpu") if index == _CPU_INDEX else torch.device(DEVICE_TYPE, index)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [tensor.to(_device(index), non_blocking=True) for index in devices]


def _broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    return [one.copy_(tensor, non_blocking=True) for one in out]


def _broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    # A copy between devices costs no more for a small tensor than for a part of a buffer.
    del buffer_size
    if torch.is_autocast_enabled(DEVICE_TYPE) and not torch.is_autocast_enabled():
        _warn_of_autocast_in_data_parallel()
    return [
        [tensor.to(_device(index), non_blocking=True) for tensor in tensors] for index in devices
    ]


def _warn_of_autocast_in_data_parallel() -> None:
    """Warns if it is ``DataParallel`` that copies: its replicas will not autocast.

    ``torch.nn.parallel.parallel_apply`` turns autocast on in its threads if
    ``torch.is_autocast_enabled()`` says so, which without a type is about CUDA, and off otherwise.
    """
    frame, level, is_data_parallel = sys._getframe(), 1, False
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        is_data_parallel |= module == "torch.nn.parallel.data_parallel"
        if is_data_parallel and not module.startswith("torch."):
            break
        frame, level = frame.f_back, level + 1
    if is_data_parallel:
        warnings.warn(
            f"DataParallel: autocast for {DEVICE_TYPE!r} is on where the model is called, but its "
            "replicas run in threads, to which torch passes CUDA's autocast only. Enter "
            f"torch.autocast({DEVICE_TYPE!r}) in the module's forward instead.",
            stacklevel=level,
        )


def _scatter(
    tensor: Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[openreg.Stream | None] | None,
) -> list[Tensor]:
    chunks = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else tensor.split(list(chunk_sizes), dim)
    )
    scattered = []
    for i, (chunk, index) in enumerate(zip(chunks, devices, strict=False)):
        with openreg.stream(streams[i] if streams else None):
            scattered.append(chunk.to(_device(index), non_blocking=True))
    return scattered


def _scatter_out(
    tensor: Tensor,
    out: Sequence[Tensor],
    dim: int,
    streams: Sequence[openreg.Stream | None] | None,
) -> list[Tensor]:
    chunks = tensor.split([one.size(dim) for one in out], dim)
    for i, (one, chunk) in enumerate(zip(out, chunks, strict=True)):
        with openreg.stream(streams[i] if streams else None):
            one.copy_(chunk, non_blocking=True)
    return list(out)


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    index = openreg.current_device() if destination is None else destination
    device = _device(index)
    return torch.cat(
        [tensor.to(device, non_blocking=index != _CPU_INDEX) for tensor in tensors], dim
    )


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    parts = out.split([tensor.size(dim) for tensor in tensors], dim)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor, non_blocking=not out.is_cpu)
    return out
