"""Kernels that Inductor generates for the CPU, bound so that a stream's worker calls them.

Generated wrappers import :func:`define_kernel` and :data:`empty_strided`, and nothing else of us;
those for kernels in Triton import :func:`empty_strided_here`.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import torch_openreg
from torch_openreg import _C
from torch_openreg.extras.inductor._internals import AsyncCompile, CodeCacheFuture, LambdaFuture

__all__ = [
    "HEADERS",
    "KERNEL_HEADERS",
    "Kernel",
    "define_kernel",
    "empty_strided",
    "empty_strided_here",
    "headers_text",
    "parameters_of",
]

empty_strided = _C._inductor_empty_strided()


def empty_strided_here(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Allocates a tensor on the current device."""
    return empty_strided(size, stride, dtype, _C._get_device())


# What generated code has in common with the library.
_INCLUDE = Path(torch_openreg.__file__).parent / "include" / "torch_openreg"


def headers_text(*names: str) -> str:
    """Returns headers as text that becomes part of a source, without their own includes of ours.

    Args:
        names: paths below ``include/torch_openreg``, in the order in which they include each other.
    """
    return "".join(
        line
        for name in names
        for line in (_INCLUDE / name).read_text().splitlines(keepends=True)
        if not line.startswith(("#pragma once", '#include "'))
    )


KERNEL_HEADERS = ("aten/KernelSlot.h", "inductor/kernel.h")
# All files of which texts become parts of sources.
HEADERS = (_INCLUDE / KERNEL_HEADERS[0], *sorted((_INCLUDE / "inductor").glob("*.h")))
_HEADER = headers_text(*KERNEL_HEADERS)
_MASKS = headers_text("inductor/masks.h")
_TORCH_HEADERS = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
_ENTRY = re.search(r'#define OPENREG_KERNEL_CALL "(\w+)"', _HEADER)[1]  # type: ignore[index]


class Kernel:
    """A generated kernel: for CPU tensors, and for tensors on a device."""

    __slots__ = ("_call", "_name", "launch")

    def __init__(self, name: str, call: Any, parameters: str) -> None:
        self._call = call
        self._name = name
        # Takes the kernel's arguments, the index of the device, and the positions of arguments that
        # are CPU tensors of one element, as a tuple, if there are any.
        self.launch = _C._inductor_kernel(name, call.__self__.__file__, parameters)

    def __call__(self, *args: Any) -> None:
        """Runs the kernel on CPU tensors.

        Raises:
            RuntimeError: A tensor is on a device, whose memory the host cannot access.
        """
        for arg in args:
            if isinstance(arg, torch.Tensor) and not arg.is_cpu:
                raise RuntimeError(f"{self._name}: expected CPU tensors, got one on {arg.device}")
        self._call(*args)


def parameters_of(
    name: str, argument_types: Sequence[str], source: str, function: str = "kernel"
) -> str:
    """Returns a letter for each parameter; see ``csrc/extras/inductor/InductorKernel.h``."""
    definition = re.search(rf"\b{function}\s*\(([^)]*)\)", source[source.rfind('extern "C"') :])
    names = [part.split()[-1] for part in definition[1].split(",")] if definition else []
    if len(names) != len(argument_types):
        raise RuntimeError(
            f"{name}: expected a kernel with {len(argument_types)} parameters, got "
            f"{definition[0] if definition else 'none'}"
        )
    letters = []
    for parameter, argument_type in zip(names, argument_types, strict=True):
        if argument_type.endswith("*"):
            is_read = argument_type.startswith("const ")
            letters.append("r" if is_read else "u" if parameter.startswith("in_out") else "w")
        elif argument_type in ("const int64_t", "int64_t"):
            letters.append("i")
        elif argument_type in ("const float", "float", "const double", "double"):
            letters.append("f")
        else:
            raise RuntimeError(
                f"{name}: expected parameters that are pointers or numbers, got {argument_type}"
            )
    return "".join(letters)


def _entry_of(argument_types: Sequence[str], parameters: str) -> str:
    """Returns the source of the function by which a worker calls the kernel."""
    arguments = []
    for index, (argument_type, letter) in enumerate(zip(argument_types, parameters, strict=True)):
        slot = f"slots[{index}]"
        if letter == "i":
            arguments.append(f"{slot}.integer")
        elif letter == "f":
            arguments.append(f"static_cast<{argument_type}>({slot}.number)")
        else:
            arguments.append(f"static_cast<{argument_type}>(const_cast<void*>({slot}.pointer))")
    return (
        f"\n{_HEADER}\n"
        '__attribute__((visibility("default")))\n'
        f'extern "C" void {_ENTRY}(const OpenRegSlot* slots) {{\n'
        f"    kernel({', '.join(arguments)});\n"
        "}\n"
    )


def _with_masks(source: str) -> str:
    """Adds the conversions of masks to a kernel that has some."""
    if "VecMask" not in source:
        return source
    return source.replace(_TORCH_HEADERS, f"{_TORCH_HEADERS}{_MASKS}", 1)


def define_kernel(
    async_compile: AsyncCompile, name: str, argument_types: Sequence[str], source: str
) -> Any:
    """Compiles a kernel, maybe in the background: Inductor waits for the returned object."""
    parameters = parameters_of(name, argument_types, source)
    compiled = async_compile.cpp_pybinding(
        list(argument_types), _with_masks(source) + _entry_of(argument_types, parameters)
    )
    if isinstance(compiled, CodeCacheFuture):
        return LambdaFuture(lambda: Kernel(name, compiled.result(), parameters))
    return Kernel(name, compiled, parameters)
