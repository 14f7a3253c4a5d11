"""The stages of a compilation: Triton's intermediate code, C++, and a library."""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from triton._C.libtriton import ir, nvidia, passes
from triton.backends.compiler import GPUTarget, Language
from triton.backends.nvidia.compiler import CUDABackend, CUDAOptions
from triton.compiler.errors import CompilationError

from torch_openreg._version import __version__
from torch_openreg.extras.triton import _compile, _driver, _float8, _ttir
from torch_openreg.extras.triton._lowered import Argument, Location, Lowered, LoweringError
from torch_openreg.extras.triton._lowered import Options as LoweringOptions
from torch_openreg.openreg._utils import DEVICE_TYPE, _setting

__all__ = ["Options", "Stages"]

# Formats of 8 bits that some GPU computes with.
_FLOAT8 = ("fp8e4b15", "fp8e4b8", "fp8e4nv", "fp8e5", "fp8e5b16")

# Options of HIP's compiler that CUDA's does not have. Kernels for both are launched with them.
_HIP_OPTIONS = {
    "allow_flush_denorm": False,
    "kpack": 1,
    "matrix_instr_nonkdim": 0,
    "schedule_hint": "none",
    "waves_per_eu": 0,
}


class Options:
    """The options of a kernel, as attributes."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def hash(self) -> str:
        """Returns a key for what the options make of a kernel."""
        text = "_".join(f"{name}-{value}" for name, value in sorted(self.__dict__.items()))
        return hashlib.sha256(text.encode()).hexdigest()


class Stages:
    """The compiler for one target."""

    def __init__(self, target: GPUTarget) -> None:
        # What CUDA's compiler would say of the options. Its class decides about kernels, too: what
        # compiles here compiles there.
        # Inductor names a device by something else than a capability.
        arch = target.arch if isinstance(target.arch, int) else _driver.target().arch
        self._arch = arch
        self._cuda = CUDABackend(GPUTarget("cuda", arch, target.warp_size))

    def hash(self) -> str:
        """Returns what compiled kernels depend on besides their sources and options."""
        return f"openreg-{__version__}-{self._arch}-{_checks()}-{_key_of_sources()}"

    def parse_options(self, given: dict[str, Any]) -> Options:
        """Returns the options, and the defaults of those that are not given."""
        own = {name: given[name] for name in given if name in CUDAOptions.__dataclass_fields__}
        values = dict(vars(self._cuda.parse_options(own)))
        if DEVICE_TYPE != "cuda":
            values["supported_fp8_dtypes"] = _FLOAT8
        for name, default in _HIP_OPTIONS.items():
            values[name] = given.get(name, default)
        return Options(values)

    def codegen_functions(self, options: Options) -> dict[str, Any]:
        """Returns what the front end asks of the target."""
        functions = dict(self._cuda.get_codegen_implementation(options))
        functions["convert_custom_types"] = _float8.convert_float8e4b15
        if DEVICE_TYPE != "cuda":
            functions["min_dot_size"] = lambda lhs, rhs: (1, 1, 1)
        return functions

    def module_map(self) -> dict[str, ModuleType]:
        """Returns the modules that stand for others in kernels."""
        return dict(self._cuda.get_module_map())

    def load_dialects(self, context: Any) -> None:
        """Loads the dialects of CUDA's kernels."""
        nvidia.load_dialects(context)

    def add(self, stages: dict[str, Any], options: Options, language: Any) -> None:
        """Adds the stages.

        Raises:
            CompilationError: The language is not Triton's own.
        """
        if language not in (None, Language.TRITON):
            raise CompilationError(
                None,
                ast.Module([], []),
                "Gluon programs the parts of a GPU, which an emulated one does not have: expected "
                "a function with @triton.jit",
            )
        work = _Work(options)
        stages["ttir"] = work.optimize
        stages["cpp"] = work.lower
        stages["so"] = work.compile


class _Work:
    """One compilation."""

    def __init__(self, options: Any) -> None:
        self._options = options
        self._lowered: Lowered | None = None

    def optimize(self, module: Any, metadata: dict[str, Any]) -> Any:
        """Rewrites what is only a notation for pointers, and simplifies the code."""
        manager = ir.pass_manager(module.context)
        manager.enable_debug()
        for add in _passes():
            add(manager)
        manager.run(module, "make_ttir")
        return module

    def lower(self, module: Any, metadata: dict[str, Any]) -> str:
        """Returns the kernel in C++, and keeps what its launches need."""
        from torch_openreg.extras.triton._lower import lower

        options = LoweringOptions(checks=_checks(), fuses=bool(self._options.enable_fp_fusion))
        builder = ir.builder(module.context)
        try:
            self._lowered = lower(_ttir.print_generic(module, builder.get_bool_attr(True)), options)
        except LoweringError as error:
            raise compilation_error(error) from error
        return self._lowered.source

    def compile(self, source: str, metadata: dict[str, Any]) -> bytes:
        """Compiles the kernel, and describes it for launches."""
        lowered = self._lowered
        assert lowered is not None
        library = _compile.compile_library(lowered)
        metadata["name"] = lowered.name
        # Launches use no memory of this kind. Programs divide by the number.
        metadata["shared"] = 4 * self._options.num_warps
        metadata["tmem_size"] = None
        metadata["cluster_dims"] = (1, 1, 1)
        # Triton looks for the compiler by the name that is stored.
        target = metadata["target"]
        metadata["target"] = GPUTarget("openreg", target.arch, target.warp_size)
        metadata["openreg"] = {
            "library": library.name,
            "fuses": lowered.fuses,
            "arguments": [[one.name, _letter(one)] for one in lowered.arguments],
            "locations": [(one.message, _place(one)) for one in lowered.locations],
        }
        return library.read_bytes()


def compilation_error(error: LoweringError) -> CompilationError:
    """Returns Triton's exception for what cannot be compiled, with the lines before it."""
    if not error.frames:
        return CompilationError(None, ast.Module([], []), str(error))
    place = error.frames[-1]
    node = ast.Pass(lineno=place.line, col_offset=0)
    return CompilationError("".join(linecache.getlines(place.file)), node, str(error))


def _checks() -> bool:
    return _setting("OPENREG_TRITON_CHECK") != "0"


def _passes() -> list[Callable[[Any], None]]:
    # Those of block pointers and of licm have moved between releases.
    found = [
        passes.common.add_inliner,
        getattr(passes.ttir, "add_rewrite_tensor_pointer", None),
        passes.ttir.add_rewrite_tensor_descriptor_to_pointer,
        passes.common.add_canonicalizer,
        passes.ttir.add_combine,
        passes.common.add_cse,
        getattr(passes.ttir, "add_triton_licm", None),
        passes.common.add_symbol_dce,
    ]
    return [one for one in found if one is not None]


@functools.cache
def _key_of_sources() -> str:
    """Returns a key for this package's part of a compilation, and for the machine's."""
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    text = b"\0".join([_compile.compiler_key().encode(), *sources])
    return hashlib.sha256(text).hexdigest()


def _letter(argument: Argument) -> str:
    """Returns what the launcher calls the argument; see TritonParameter in csrc/extras/triton."""
    if argument.kind == "pointer":
        accesses = (argument.is_read, argument.is_written)
        return {(True, True): "u", (True, False): "r", (False, True): "w"}.get(accesses, "n")
    return {"integer": "i", "number": "f"}[argument.kind]


def _place(location: Location) -> str:
    """Returns the innermost place of a location, and those that it was called at."""
    return ", called at ".join(map(str, location.frames))
