"""Compiles kernels with Triton's front end and runs them on CPU tensors, without a driver."""

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from triton._C.libtriton import ir, passes
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource

from torch_openreg.extras.triton import _compile
from torch_openreg.extras.triton._lower import lower
from torch_openreg.extras.triton._lowered import Location, Lowered, Options
from torch_openreg.extras.triton._ttir import print_generic

__all__ = ["KernelError", "launch", "lowered", "ttir"]

_TYPES = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.uint16: "u16",
    torch.int32: "i32",
    torch.uint32: "u32",
    torch.int64: "i64",
    torch.uint64: "u64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.float8_e4m3fnuz: "fp8e4b8",
    torch.float8_e5m2fnuz: "fp8e5b16",
}
_STATUS = (
    *("success", "illegal read", "illegal write", "illegal atomic", "misaligned atomic"),
    *("assertion", "index", "wait", "out of memory"),
)
# Kernels are never unloaded, and the files of a process need not outlive it.
_FOLDER = TemporaryDirectory()
_LIBRARIES: dict[Path, Any] = {}


class Launch(ctypes.Structure):
    """OpenRegTritonLaunch."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_int32),
        ("kernel_offset", ctypes.c_int64),
        ("wait_limit_ns", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("is_allocated", ctypes.c_void_p),
        ("print", ctypes.c_void_p),
        ("observe", ctypes.c_void_p),
    )


class Error(ctypes.Structure):
    """OpenRegTritonError."""

    _fields_ = (
        ("status", ctypes.c_int32),
        ("location", ctypes.c_int32),
        ("argument", ctypes.c_int32),
        ("program", ctypes.c_uint32 * 3),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


class Access(ctypes.Structure):
    """OpenRegTritonAccess."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("location", ctypes.c_int32),
        ("argument", ctypes.c_int32),
        ("program", ctypes.c_uint32 * 3),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("stride", ctypes.c_int64),
    )


IS_ALLOCATED = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
PRINT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
OBSERVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Access))


@dataclass
class KernelError(Exception):
    """A launch has failed."""

    status: str
    location: Location | None
    argument: str | None
    program: tuple[int, ...]
    address: int
    size: int


@dataclass
class _Call:
    signature: dict[str, str] = field(default_factory=dict)
    constants: dict[tuple[int, ...], Any] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)


def _number(value: float) -> int:
    return ctypes.c_uint64.from_buffer_copy(ctypes.c_double(value)).value


def _prepare(kernel: triton.JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    call = _Call()
    bound = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    for position, parameter in enumerate(kernel.params):
        name = parameter.name
        value = bound.get(name, parameter.default)
        if parameter.is_constexpr or value is None:
            call.signature[name] = "constexpr"
            call.constants[position,] = value
        elif isinstance(value, torch.Tensor):
            call.signature[name] = f"*{_TYPES[value.dtype]}"
            storage = value.untyped_storage()
            begin = storage.data_ptr()
            call.slots += [value.data_ptr(), begin, begin + storage.nbytes()]
            call.kept.append(value)
        elif isinstance(value, bool):
            call.signature[name] = "i1"
            call.slots.append(int(value))
        elif isinstance(value, int):
            call.signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            call.slots.append(value & (2**64 - 1))
        else:
            call.signature[name] = parameter.annotation_type or "fp32"
            call.slots.append(_number(value))
    return call


def _options(target: GPUTarget) -> tuple[CUDABackend, Any]:
    backend = CUDABackend(target)
    names = ("fp8e5", "fp8e4b8", "fp8e4nv", "fp8e5b16")
    options = {"debug": True, "sanitize_overflow": False, "supported_fp8_dtypes": names}
    return backend, backend.parse_options(options)


def _module_text(
    kernel: triton.JITFunction, signature: dict[str, str], constants: dict[Any, Any]
) -> str:
    target = GPUTarget("cuda", 80, 32)
    backend, options = _options(target)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, signature, constants)
    module = source.make_ir(
        target,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    if hasattr(passes.ttir, "add_rewrite_tensor_pointer"):
        passes.ttir.add_rewrite_tensor_pointer(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.common.add_cse(manager)
    passes.common.add_licm(manager)
    passes.common.add_symbol_dce(manager)
    manager.run(module, "make_ttir")
    return print_generic(module, ir.builder(module.context).get_bool_attr(True))


def ttir(kernel: triton.JITFunction, *args: Any, **kwargs: Any) -> str:
    """Returns the text that a kernel is lowered from, for some arguments."""
    call = _prepare(kernel, args, kwargs)
    return _module_text(kernel, call.signature, call.constants)


def lowered(
    kernel: triton.JITFunction, *args: Any, options: Options | None = None, **kwargs: Any
) -> Lowered:
    """Returns a kernel in C++, for some arguments."""
    return lower(ttir(kernel, *args, **kwargs), options)


def launch(
    kernel: triton.JITFunction,
    grid: tuple[int, ...],
    *args: Any,
    options: Options | None = None,
    threads: int = 1,
    offset: int = 0,
    wait_limit_ns: int = 0,
    is_allocated: Any = None,
    print_text: Any = None,
    observe: Any = None,
    **kwargs: Any,
) -> Lowered:
    """Runs a kernel.

    Args:
        kernel: The kernel.
        grid: The number of programs, up to three numbers.
        args: Its arguments: CPU tensors, numbers and constants.
        options: What to compile it to.
        threads: How many threads run programs.
        offset: What the kernel adds to the addresses of tensors.
        wait_limit_ns: See OpenRegTritonLaunch, as for the functions.
        kwargs: Arguments by name.

    Raises:
        KernelError: The launch has failed.
    """
    call = _prepare(kernel, args, kwargs)
    result = lower(_module_text(kernel, call.signature, call.constants), options)
    library = _compile.compile_library(result, Path(_FOLDER.name))
    if library not in _LIBRARIES:
        _LIBRARIES[library] = ctypes.CDLL(str(library))
    functions = [
        None if function is None else kind(function)
        for kind, function in (
            (IS_ALLOCATED, is_allocated),
            (PRINT, print_text),
            (OBSERVE, observe),
        )
    ]
    description = Launch(
        (ctypes.c_uint32 * 3)(*grid, *(1,) * (3 - len(grid))),
        threads,
        offset,
        wait_limit_ns,
        None,
        *(None if one is None else ctypes.cast(one, ctypes.c_void_p) for one in functions),
    )
    error = Error()
    slots = (ctypes.c_uint64 * max(len(call.slots), 1))(*call.slots)
    status = _LIBRARIES[library].openreg_triton_kernel(
        ctypes.byref(description), slots, ctypes.byref(error)
    )
    if status != 0:
        raise KernelError(
            _STATUS[status],
            result.locations[error.location] if error.location >= 0 else None,
            result.arguments[error.argument].name if error.argument >= 0 else None,
            tuple(error.program),
            error.address,
            error.size,
        )
    return result
