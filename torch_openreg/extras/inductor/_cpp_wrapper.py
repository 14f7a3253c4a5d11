"""Wrappers in C++: with ``config.cpp_wrapper``.

The wrapper is the CPU's. Its kernels are launched, and operators are called through the dispatcher,
by functions of the backend's library that generated code looks up; see ``wrapper.h``.
"""

# mypy: disable-error-code="no-untyped-call"

import functools
import re
from typing import Any

import torch

from torch_openreg.extras.inductor import _internals, _kernels
from torch_openreg.extras.inductor._devices import DEVICE_TYPE, is_ours, is_proxy, original
from torch_openreg.extras.inductor._internals import (
    AotCodeCompiler,
    CppWrapperCpu,
    PythonWrapperCodegen,
    V,
    config,
    ir,
)
from torch_openreg.extras.inductor._wrapper import (
    HOST_SCALARS,
    HostScalarLines,
    note_what_is_no_capture,
    refuse_cpp,
)

__all__ = ["OpenRegCppWrapper", "compile_packages_without_a_precompiled_header"]

_SHIM = "aoti_torch_openreg_"
_CPU_SHIM = "aoti_torch_cpu_"
_SHIM_NAME = re.compile(rf"\b{_SHIM}(\w+)\(")
_NAMESPACE = "openreg_wrapper"


@functools.cache
def _header(*names: str) -> str:
    return _kernels.headers_text(
        *_kernels.KERNEL_HEADERS, *(f"inductor/{name}.h" for name in names)
    )


@functools.cache
def _operators() -> dict[str, torch._ops.OpOverload]:
    """The operators for which torch has C functions, by the ends of their names."""
    operators = {}
    for key in _internals.inductor_fallback_ops:
        _, name, overload = key.split(".")
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None and overload in packet.overloads():
            shim = name if overload == "default" else f"{name}_{overload}"
            operators[shim] = getattr(packet, overload)
    return operators


class OpenRegCppWrapper(HostScalarLines, CppWrapperCpu):
    """The wrapper, in C++, of a graph with tensors on our devices."""

    def __init__(self) -> None:
        self._definitions: dict[str, str] = {}
        if V.graph.aot_mode:
            self.device = DEVICE_TYPE  # of the weights
        super().__init__()
        self.needs_vec_isa = True

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Returns the wrapper of a graph, or of a graph inside one."""
        refuse_cpp()
        note_what_is_no_capture()
        return OpenRegCppWrapper()

    def add_device_include(self, device: str) -> None:
        """Includes the headers of the CPU's wrapper, and adds this wrapper's definitions."""
        if self.included_devices:
            return
        if V.graph.aot_mode:
            # The CPU's wrapper includes torch's runtime, which these definitions change.
            self.header.splice(_header("wrapper", "model"))
            super().add_device_include("cpu")
        else:
            # The CPU's is compiled beforehand, as the first.
            super().add_device_include("cpu")
            self.header.splice(_header("wrapper"))

    def codegen_device(self, device: torch.device) -> str:
        """Returns the two arguments that name a device."""
        device = original(device)
        if not is_ours(device):
            return str(super().codegen_device(device))
        self.used_cached_devices.add("privateuse1")
        return f"cached_torch_device_type_privateuse1, {device.index or 0}"

    def define_kernel(self, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> None:
        self._definitions[kernel_name] = kwargs.get("cpp_definition") or ""
        super().define_kernel(kernel_name, kernel_body, *args, **kwargs)

    def _generate_kernel_call_helper(
        self,
        kernel_name: str,
        call_args: Any,
        *,
        device: torch.device | None = None,
        arg_types: Any = None,
        **kwargs: Any,
    ) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if not is_proxy(device):
            super()._generate_kernel_call_helper(
                kernel_name, call_args, device=device, arg_types=arg_types, **kwargs
            )
            return
        letters = _kernels.parameters_of(
            kernel_name, arg_types, self._definitions[kernel_name], kernel_name
        )
        positions = kwargs["inductor_meta"][HOST_SCALARS]
        arguments = [
            f"{_NAMESPACE}::hostScalar({argument})" if index in positions else str(argument)
            for index, argument in enumerate(call_args)
        ]
        kernel = f'{_NAMESPACE}::getKernel<&{kernel_name}>("{kernel_name}", "{letters}")'
        self.writeline(
            self.wrap_kernel_call(
                f"{_NAMESPACE}::launch",
                [kernel, self.codegen_device_idx(original(device), str(device.index)), *arguments],
            )
        )

    @staticmethod
    def get_c_shim_func_name(kernel: str, device: str) -> str:
        """Returns the name of the function that calls an operator, on whatever device."""
        name = str(CppWrapperCpu.get_c_shim_func_name(kernel, "openreg"))
        if name.startswith(_CPU_SHIM):
            raise NotImplementedError(
                f"torch.compile: expected cpp_wrapper=False for a graph with {kernel} on "
                f"{DEVICE_TYPE}, got True"
            )
        return name

    def generate_input_output_runtime_checks(self) -> None:
        """Writes the checks that AOTI_RUNTIME_CHECK_INPUTS turns on, with our device type."""
        prefix = self.prefix
        self.prefix = _internals.make_codegen_buffer()
        super().generate_input_output_runtime_checks()
        checks = self.prefix.getvalue()
        self.prefix = prefix
        for name, value in V.graph.graph_inputs.items():
            if isinstance(value, ir.TensorBox) and is_proxy(value.get_device()):
                expected = f"int32_t {name}_expected_device_type = "
                checks = checks.replace(
                    f"{expected}0;", f"{expected}aoti_torch_device_type_privateuse1();"
                )
                checks = checks.replace(
                    f'{name}_expected_device_type << "0(cpu), ',
                    f'{name}_expected_device_type << "({DEVICE_TYPE}), ',
                )
        self.prefix.splice(checks)

    def codegen_model_constructor(self) -> None:
        """Writes the metadata of a compiled program's weights."""
        for name in V.graph.constants:
            device = V.graph.get_original_value_of_constant(name).device
            if not is_ours(device):
                # torch's runtime gives them the offsets of others; see model.h.
                raise NotImplementedError(
                    f"AOTInductor: expected constants on {DEVICE_TYPE} in a program there, got "
                    f"'{name}' on {device}"
                )
        super().codegen_model_constructor()

    def finalize_prefix(self) -> None:
        """Writes the functions by which the wrapper calls operators."""
        super().finalize_prefix()
        names = sorted(set(_SHIM_NAME.findall(self.wrapper_call.getvalue())))
        functions = [self._function_for(name) for name in names]
        prefix = self.prefix
        self.prefix = _internals.make_codegen_buffer()
        for function in functions:
            self.prefix.splice(function)
        self.prefix.splice(prefix)

    def _function_for(self, name: str) -> str:
        # A function whose operator has got more arguments has a newer version.
        operator = _operators().get(re.sub(r"_v\d+$", "", name))
        if operator is None:
            raise NotImplementedError(
                "torch.compile: expected operators that torch has C functions for in a graph "
                f"with cpp_wrapper=True, got {name}"
            )
        schema = operator._schema
        return f"""
            template <typename... Values>
            AOTITorchError {_SHIM}{name}(const Values&... values) {{
                return {_NAMESPACE}::call(
                    "{schema.name}", "{schema.overload_name}", values...);
            }}
            """

    def generate_fallback_kernel_with_runtime_lookup(
        self,
        buf_name: str,
        python_kernel_name: str,
        get_args: Any,
        op_overload: Any,
        raw_args: Any,
        outputs: Any,
    ) -> None:
        """Writes the call of an operator that torch has no C function for."""
        if any(isinstance(argument, torch.device) for argument in raw_args):
            raise NotImplementedError(
                "torch.compile: expected operators that take no device, or that torch has C "
                f"functions for, in a graph with a wrapper in C++, got {op_overload}"
            )
        super().generate_fallback_kernel_with_runtime_lookup(
            buf_name, python_kernel_name, get_args, op_overload, raw_args, outputs
        )

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            "torch.compile: expected cpp_wrapper=False for a function that enters a stream, got "
            "True"
        )


def compile_packages_without_a_precompiled_header() -> None:
    """Switches off, for programs on our devices, what torch does for its own device types.

    It compiles a header of the device type beforehand, which it has for its own ones alone.
    """
    compile_package = AotCodeCompiler.compile

    @functools.wraps(compile_package)
    def compile_of_any_device(*args: Any, device_type: str, **kwargs: Any) -> Any:
        changes = {"aot_inductor.precompile_headers": False} if device_type == DEVICE_TYPE else {}
        with config.patch(changes):
            return compile_package(*args, device_type=device_type, **kwargs)

    setattr(AotCodeCompiler, "compile", staticmethod(compile_of_any_device))  # noqa: B010
