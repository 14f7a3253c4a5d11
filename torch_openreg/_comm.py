"""The functions of ``torch._C`` that ``torch.nn.parallel.comm``, and so ``DataParallel``, calls.

It calls these functions for any kind of device, but they are part of torch's builds with CUDA only,
and serve CUDA only: so it is in torch 2.13 to 2.15. Without CUDA, these are used. With CUDA,
torch's functions are used for CUDA tensors, and these for openreg tensors. With the first torch
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

_CPU_INDEX = -1  # instead of the index of a device
_A_TENSOR = "CUDA" if DEVICE_TYPE == "cuda" else DEVICE_TYPE  # as the error texts call it


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


# Note [Checks of comm]
# The checks and their texts are those of torch/csrc/cuda/comm.cpp: torch's Python code passes the
# arguments on without checks. All of its checks raise RuntimeError.


def _device(index: int) -> torch.device:
    if index < 0:
        raise RuntimeError(f"Expected non-negative device index, but got {index}")
    return torch.device(DEVICE_TYPE, index)


def _check_outputs_are_on_devices(out: Sequence[Tensor]) -> None:
    for i, one in enumerate(out):
        if one.device.type != DEVICE_TYPE:
            raise RuntimeError(
                f"Expected all output tensors to be {_A_TENSOR} tensors, but output tensor at "
                f"index {i} has device '{one.device}'"
            )


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [tensor.to(device, non_blocking=True) for device in [_device(i) for i in devices]]


def _broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    _check_outputs_are_on_devices(out)
    for i, one in enumerate(out):
        if one.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {i} has shape {list(one.shape)}"
            )
    return [one.copy_(tensor, non_blocking=True) for one in out]


def _broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    # A copy between devices costs no more for a small tensor than for a part of a buffer.
    del buffer_size
    if not devices:
        raise RuntimeError("Expected at least one device to broadcast to")
    for tensor in tensors:
        if tensor.get_device() != devices[0]:
            raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    if torch.is_autocast_enabled(DEVICE_TYPE) and not torch.is_autocast_enabled():
        _warn_of_autocast_in_data_parallel()
    return [
        [tensor.to(_device(index), non_blocking=True) for tensor in tensors] for index in devices
    ]


def _warn_of_autocast_in_data_parallel() -> None:
    """Warns if it is ``DataParallel`` that copies: its replicas will not autocast.

    ``torch.nn.parallel.parallel_apply`` turns autocast on in its threads if
    ``torch.is_autocast_enabled()`` is true, and off otherwise. Without a type, this means CUDA with
    torch 2.13, and the accelerator since 2.14.
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


def _checked_dim(dim: int, tensor: Tensor) -> int:
    """Returns the dimension without a negative sign."""
    count = max(tensor.dim(), 1)
    if not -count <= dim < count:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got "
            f"{dim})"
        )
    return dim % count


def _checked_stream(
    streams: Sequence[openreg.Stream | None] | None, i: int, device: int
) -> openreg.Stream | None:
    """Returns the stream for the chunk with an index; None for the current one."""
    stream = streams[i] if streams is not None and i < len(streams) else None
    if stream is not None and stream.device_index != device:
        raise RuntimeError(
            f"Expected the device associated with the stream at index {i} (was "
            f"{stream.device_index}) to match the device supplied at that index (expected {device})"
        )
    return stream


def _scatter(
    tensor: Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[openreg.Stream | None] | None,
) -> list[Tensor]:
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got len(devices) = "
            f"{len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    dim = _checked_dim(dim, tensor)
    chunks = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else tensor.split(list(chunk_sizes), dim)
    )
    scattered = []
    # There may be fewer chunks than devices.
    for i, (chunk, index) in enumerate(zip(chunks, devices, strict=False)):
        if index == tensor.get_device():
            scattered.append(chunk)
            continue
        with openreg.stream(_checked_stream(streams, i, index)):
            scattered.append(chunk.to(_device(index), non_blocking=True))
    return scattered


def _scatter_out(
    tensor: Tensor,
    out: Sequence[Tensor],
    dim: int,
    streams: Sequence[openreg.Stream | None] | None,
) -> list[Tensor]:
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim = _checked_dim(dim, tensor)
    _check_outputs_are_on_devices(out)
    for i, one in enumerate(out):
        if one.dim() != tensor.dim() or _without(one, dim) != _without(tensor, dim):
            raise RuntimeError(
                f"Output tensor at index {i} has incorrect shape: {list(one.shape)}. Expected same "
                f"shape except for scatter dim {dim} as the source tensor: {list(tensor.shape)}"
            )
    total = sum(one.size(dim) for one in out)
    if total != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {tensor.size(dim)}, but got total size {total}"
        )
    chunks = tensor.split([one.size(dim) for one in out], dim)
    for i, (one, chunk) in enumerate(zip(out, chunks, strict=True)):
        with openreg.stream(_checked_stream(streams, i, one.get_device())):
            one.copy_(chunk, non_blocking=True)
    return list(out)


def _without(tensor: Tensor, dim: int) -> list[int]:
    """Returns the sizes of a tensor but that of one dimension."""
    return [size for i, size in enumerate(tensor.shape) if i != dim]


def _check_inputs(tensors: Sequence[Tensor], dim: int) -> tuple[int, list[int]]:
    """Checks the tensors to gather; returns the dimension and the sizes of the result."""
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    first = tensors[0]
    if first.dim() == 0:
        raise RuntimeError("Expected tensors with a dimension to gather along, got scalars")
    dim = _checked_dim(dim, first)
    for i, tensor in enumerate(tensors):
        if tensor.device.type != DEVICE_TYPE:
            raise RuntimeError(
                f"Expected all input tensors to be {_A_TENSOR} tensors, but tensor at index {i} "
                f"has device '{tensor.device}'"
            )
        if tensor.dim() != first.dim():
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {i} has {tensor.dim()} dimensions, (expected {first.dim()})"
            )
        expected = list(first.shape)
        expected[dim] = tensor.size(dim)
        if list(tensor.shape) != expected:
            raise RuntimeError(
                f"Input tensor at index {i} has invalid shape {list(tensor.shape)}, but expected "
                f"{expected}"
            )
    sizes = list(first.shape)
    sizes[dim] = sum(tensor.size(dim) for tensor in tensors)
    return dim, sizes


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    dim, sizes = _check_inputs(tensors, dim)
    if destination == _CPU_INDEX:
        device = torch.device("cpu")
    else:
        device = _device(openreg.current_device() if destination is None else destination)
    result = torch.empty(
        sizes, dtype=tensors[0].dtype, device=device, memory_format=_common_format(tensors)
    )
    return _copy_parts(tensors, result, dim)


def _common_format(tensors: Sequence[Tensor]) -> torch.memory_format:
    for memory_format in (torch.channels_last, torch.channels_last_3d):
        if all(
            not tensor.is_contiguous() and tensor.is_contiguous(memory_format=memory_format)
            for tensor in tensors
        ):
            return memory_format
    return torch.contiguous_format


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    dim, sizes = _check_inputs(tensors, dim)
    if list(out.shape) != sizes:
        raise RuntimeError(f"Expected out tensor to have shape {sizes}, but got {list(out.shape)}")
    return _copy_parts(tensors, out, dim)


def _copy_parts(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    begin = 0
    for tensor in tensors:
        part = out.narrow(dim, begin, tensor.size(dim))
        # The caller may read host memory as soon as this function returns.
        part.copy_(tensor, non_blocking=not out.is_cpu)
        begin += tensor.size(dim)
    return out
