"""Which operators have kernels of CUDA, which of these check devices, and which are the CPU's.

torch declares all of this.

torch generates a wrapper for each kernel of CUDA. Unless the operator is declared with
``device_check: NoCheck``, the wrapper checks that the tensors of the call are on one device, and a
CPU tensor without dimensions is an error, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from facts import Entry, Fact, installed_release, load_facts
from model import declarations
from torchgen.api import native
from torchgen.api.types import DispatcherSignature
from torchgen.gen import get_grouped_native_functions
from torchgen.model import (
    BackendIndex,
    DeviceCheckType,
    DispatchKey,
    NativeFunction,
    is_cuda_dispatch_key,
)

# The dispatch keys of CUDA's kernels.
_CUDA_KEYS = (
    DispatchKey.CUDA,
    DispatchKey.SparseCUDA,
    DispatchKey.SparseCsrCUDA,
    DispatchKey.QuantizedCUDA,
    DispatchKey.NestedTensorCUDA,
)

_SHARED_LAYOUTS = (
    (
        "shared_sparse",
        "sparse tensors of coordinates",
        (DispatchKey.SparseCPU, DispatchKey.SparseCUDA),
    ),
    (
        "shared_sparse_csr",
        "compressed sparse tensors",
        (DispatchKey.SparseCsrCPU, DispatchKey.SparseCsrCUDA),
    ),
)


def device_checks() -> Fact:
    """Returns the fact.

    The value of an entry is the wrapper's name after "wrapper_CUDA_", empty if it checks nothing.
    """
    backends = declarations().backend_indices
    names: dict[str, str] = {}
    # The first kernel counts: that for strided tensors, unless these are left to a composition.
    for key in (DispatchKey.CUDA, *filter(is_cuda_dispatch_key, backends)):
        for function, is_structured in _functions_with_kernel(backends[key]):
            if key is not DispatchKey.CUDA and function.has_composite_kernel:
                continue
            checks = function.device_check is not DeviceCheckType.NoCheck
            wrapper = _wrapper_name(function, is_structured) if checks else ""
            names.setdefault(str(function.func.name), wrapper)
    return Fact(
        name="device_checks",
        meaning=(
            "CUDA has a kernel. If its wrapper checks that the tensors are on one device, the "
            'value is its name after "wrapper_CUDA_", and empty otherwise.'
        ),
        names="overload",
        read_by=("csrc/aten/fallback/MixedDevices.cpp",),
        value="text",
        entries=tuple(Entry(name, names[name]) for name in sorted(names)),
    )


def without_cuda_kernel() -> Fact:
    """Returns the fact, without the operators that the facts list as served."""
    parsed = declarations()
    indices = parsed.backend_indices
    functions = {function.func.name: function for function in parsed.native_functions}
    served = load_facts()["served_without_cuda_kernel"].values_for(installed_release())

    def has_kernel(function: NativeFunction, *keys: DispatchKey) -> bool:
        kernel = functions[function.structured_delegate or function.func.name]
        return any(indices[key].has_kernel(kernel) for key in keys if key in indices)

    names = sorted(
        str(function.func.name)
        for function in parsed.native_functions
        if has_kernel(function, DispatchKey.CPU)
        and not has_kernel(function, *_CUDA_KEYS)
        and not function.has_composite_kernel
        and str(function.func.name) not in served
    )
    return Fact(
        name="without_cuda_kernel",
        meaning="The CPU has a kernel of the operator and CUDA has none.",
        names="overload",
        read_by=("csrc/aten/refusals/Refusals.h",),
        value=None,
        entries=tuple(map(Entry, names)),
    )


def shared_kernels() -> dict[str, Fact]:
    """Returns a fact for each of the layouts below, by its name."""
    parsed = declarations()
    facts = {}
    for name, layout, keys in _SHARED_LAYOUTS:
        cpu, cuda = (parsed.backend_indices[key] for key in keys)
        kernels = (
            (str(function.func.name), cpu.get_kernel(function), cuda.get_kernel(function))
            for function in parsed.native_functions
        )
        facts[name] = Fact(
            name=name,
            meaning=f"CUDA's kernel for {layout} is the CPU's: it calls operators on components.",
            names="overload",
            read_by=("csrc/aten/fallback/LayoutFallback.cpp",),
            value=None,
            entries=tuple(
                Entry(overload)
                for overload, on_cpu, on_cuda in sorted(kernels, key=lambda kernel: kernel[0])
                if on_cpu is not None and on_cuda is not None and on_cpu.kernel == on_cuda.kernel
            ),
        )
    return facts


def _functions_with_kernel(backend: BackendIndex) -> Iterator[tuple[NativeFunction, bool]]:
    """Yields functions with whether the kernel is structured."""
    for group in get_grouped_native_functions(declarations().native_functions):
        if isinstance(group, NativeFunction):
            functions, is_structured = [group], False
        else:
            kernel = backend.get_kernel(group) if group.structured else None
            functions, is_structured = list(group.functions()), bool(kernel and kernel.structured)
        for function in functions:
            if is_structured or backend.has_kernel(function):
                yield function, is_structured


def _wrapper_name(function: NativeFunction, is_structured: bool) -> str:
    if is_structured:
        return str(native.name(function.func))
    prefix = f"{function.func.name.overload_name}_"
    return str(DispatcherSignature.from_schema(function.func, prefix=prefix).name())
