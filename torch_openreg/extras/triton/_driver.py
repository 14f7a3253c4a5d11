"""Devices, streams and launches for Triton: what ``triton_openreg.driver`` is made of."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler.compiler import AsmDict

from torch_openreg import _C, openreg
from torch_openreg.extras.triton import _compile
from torch_openreg.openreg._utils import DEVICE_TYPE, _setting
from triton_openreg.compiler import OpenRegBackend, OpenRegTarget

__all__ = [
    "Utilities",
    "benchmarker",
    "bind_launcher",
    "cache_filler",
    "capability",
    "current_device",
    "current_stream",
    "device_module",
    "explain_missing_code",
    "make_cuda_decline",
    "offer_cublas",
    "set_device",
    "target",
    "torch_device",
    "type_in_cpp",
]

_WARP_SIZE = 32
# Registers of a thread: no kernel has any, and programs divide by their number.
_REGISTERS = 32
_CACHE_BYTES = 4 * 2**20

_WRAPPED = "_declines_openreg"

current_device = openreg.current_device
set_device = openreg.set_device


def make_cuda_decline() -> None:
    """Makes CUDA's compiler refuse our target of the same name: Triton expects one compiler."""
    accepts = CUDABackend.supports_target
    if getattr(accepts, _WRAPPED, False):
        return

    @functools.wraps(accepts)
    def supports_target(target: Any) -> bool:
        return bool(accepts(target)) and not isinstance(target, OpenRegTarget)

    setattr(supports_target, _WRAPPED, True)
    CUDABackend.supports_target = staticmethod(supports_target)


# Forms of a kernel that Triton's own compilers for GPUs make.
_OF_GPUS = ("ttgir", "llir", "ptx", "cubin", "sass", "amdgcn", "hsaco")


def explain_missing_code() -> None:
    """Makes ``kernel.asm`` say what it has instead of a GPU's code."""
    look_up = AsmDict.__missing__
    if getattr(look_up, _WRAPPED, False):
        return

    @functools.wraps(look_up)
    def missing(self: Any, key: str) -> Any:
        if key in _OF_GPUS and "cpp" in self:
            raise KeyError(
                f"{key}: a kernel for devices of torch_openreg is compiled by way of C++, and has "
                f"{', '.join(sorted(self))}; compile it for a GPU with "
                'triton.compile(source, target=GPUTarget("cuda", 80, 32))'
            )
        return look_up(self, key)

    setattr(missing, _WRAPPED, True)
    AsmDict.__missing__ = missing


def offer_cublas() -> None:
    """With the device type cuda, lets programs use cuBLAS by the class that Triton has for it."""
    if DEVICE_TYPE == "cuda":
        from torch_openreg.extras.triton import _cublas

        _cublas.replace_cublas()


def benchmarker() -> Callable[..., Any]:
    """Returns the function that measures kernels for autotuning.

    With OPENREG_TRITON_AUTOTUNE=first, it runs none, and finds each slower than those before.
    """
    if _setting("OPENREG_TRITON_AUTOTUNE") == "first":
        return lambda run, quantiles, **options: [float(next(_turns))] * len(quantiles)
    from triton.testing import do_bench

    return do_bench  # type: ignore[no-any-return]


_turns = itertools.count()


def current_stream() -> Callable[[int], int]:
    """Returns what gives the number of a device's current stream: 0, or the handle."""
    return _C._triton_current_stream()


def capability(device: Any = None) -> tuple[int, int]:
    """Returns the compute capability that the devices have for Triton."""
    major, minor = _setting("OPENREG_CUDA_CAPABILITY").split(".")
    return int(major), int(minor)


def target() -> OpenRegTarget:
    """Returns the devices as a target of compilations."""
    major, minor = capability()
    return OpenRegTarget(DEVICE_TYPE, 10 * major + minor, _WARP_SIZE)


def torch_device() -> torch.device:
    """Returns the current device."""
    return torch.device(DEVICE_TYPE, current_device())


def device_module() -> Any:
    """Returns the module of the device type."""
    return getattr(torch, DEVICE_TYPE)


def cache_filler() -> torch.Tensor:
    """Returns a tensor whose size is about that of a processor's caches."""
    return torch.empty(_CACHE_BYTES // 4, dtype=torch.int, device=DEVICE_TYPE)


def type_in_cpp(name: str) -> str:
    """Returns the C++ type of an argument, as CUDA's launcher has it."""
    if name.startswith("*"):
        return "void*"
    if name[0] in "iu" and name[1:].isdigit():
        bits = max(int(name[1:]), 8)
        return f"{'u' if name[0] == 'u' else ''}int{bits}_t"
    return "double"


class Utilities:
    """What Triton asks the driver for about devices and compiled kernels."""

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        """Returns the limits of a device. Those of memory on a chip are of capability 8.0."""
        properties = openreg.get_device_properties(device)
        return {
            "max_shared_mem": 166912,
            "max_num_regs": 65536,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": _WARP_SIZE,
            "sm_clock_rate": _C._device_properties(device).clock_rate,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }

    @staticmethod
    def load_binary(
        name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Returns a module, a function, registers, spilled ones, and the most threads.

        The first two are numbers that nothing uses. Triton asks again if a module is None.
        """
        return 1, 1, _REGISTERS, 0, 1024

    @staticmethod
    def unload_module(module: int) -> None:
        """Does nothing: kernels stay loaded."""


def bind_launcher(source: Any, metadata: Any) -> Callable[..., None]:
    """Returns what launches a kernel.

    Args:
        source: What was compiled.
        metadata: What :mod:`._stages` stored.
    """
    described = metadata.openreg
    arguments = iter(described["arguments"])
    kinds: list[str] = []
    names: list[str] = []
    types = list(source.signature.values())
    for kind in _flat_types(types):
        if kind == "constexpr":
            kinds.append("c")
            continue
        name, letter = next(arguments)
        names.append(name)
        kinds.append("j" if kind.startswith("u") else letter)
    launch = _C._triton_kernel(
        metadata.name,
        _library_of(source, metadata),
        "".join(kinds),
        names,
        [tuple(one) for one in described["locations"]],
        functools.cache(lambda: _traced_library_of(source, metadata)),
    )
    if all(isinstance(one, str) and not _is_descriptor(one) for one in types):
        return launch

    def launch_flat(*given: Any) -> None:
        leading = len(given) - len(types)
        launch(*given[:leading], *_flat_arguments(types, given[leading:]))

    return launch_flat


def _library_of(source: Any, metadata: Any) -> str:
    """Returns the compiled kernel's file: ours, or Triton's if ours was deleted."""
    library = _compile.default_cache() / metadata.openreg["library"]
    if library.is_file():
        return str(library)
    stored = _stored(source, metadata, OpenRegBackend.binary_ext)
    if stored is None:
        raise RuntimeError(f"{metadata.name}: expected its library {library}, which was deleted")
    return stored


def _traced_library_of(source: Any, metadata: Any) -> str | None:
    """Returns the library of the kernel that tells its accesses; None if its source is missing."""
    stored = _stored(source, metadata, "cpp")
    if stored is None:
        return None
    text = Path(stored).read_text()
    return str(_compile.compile_traced(metadata.name, text, metadata.openreg["fuses"]))


def _stored(source: Any, metadata: Any, stage: str) -> str | None:
    """Returns the file that Triton has stored for a stage of a compilation."""
    from triton.runtime.cache import get_cache_manager

    name = f"{source.name[:150]}.{stage}"
    return get_cache_manager(metadata.hash).get_file(name)  # type: ignore[no-any-return]


def _is_descriptor(kind: str) -> bool:
    return kind.startswith("tensordesc")


def _flat_types(types: Iterable[Any]) -> Iterator[str]:
    """Yields the type of each parameter of the kernel, and of each constant."""
    for kind in types:
        if not isinstance(kind, str):
            yield from _flat_types(kind)
        elif _is_descriptor(kind):
            rank = kind[kind.index("[") :].count(",") + 1
            yield "*"
            yield from ["i64"] * (2 * rank)
            yield from ["i1"] * _descriptor_flags()
            yield from ["i32"] * rank
            yield from ["i64"] * rank
        else:
            yield kind


@functools.cache
def _descriptor_flags() -> int:
    """How many flags a descriptor has in a kernel: a later release of Triton added one."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return 1 + ("round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__)


def _flat_arguments(types: Iterable[Any], arguments: Iterable[Any]) -> Iterator[Any]:
    """Yields the arguments for :func:`_flat_types`."""
    for kind, argument in zip(types, arguments, strict=True):
        if not isinstance(kind, str):
            yield from _flat_arguments(kind, argument)
        elif _is_descriptor(kind):
            yield argument.base
            yield from argument.shape
            yield from argument.strides
            yield argument.padding == "nan"
            if _descriptor_flags() == 2:
                yield argument.round_f32_to_tf32
            yield from argument.shape
            yield from argument.strides
        else:
            yield argument
