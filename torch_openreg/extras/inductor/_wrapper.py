"""Wrappers: the Python code that allocates memory and launches kernels.

Restores the original names of devices; see Note [Proxy devices].
"""

# mypy: disable-error-code="no-untyped-call"

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_openreg.extras.inductor import _internals
from torch_openreg.extras.inductor._devices import DEVICE_TYPE, HOST, is_ours, is_proxy, original
from torch_openreg.extras.inductor._internals import (
    IndentedBuffer,
    PythonWrapperCodegen,
    SubgraphPythonWrapperCodegen,
    V,
    config,
    map_aggregate,
)

__all__ = [
    "HOST_SCALARS",
    "HostScalarLines",
    "OpenRegSubgraphWrapper",
    "OpenRegWrapper",
    "create_wrapper",
    "note_what_is_no_capture",
    "refuse_cpp",
]

_EMPTY_STRIDED = "empty_strided_openreg"
_DEFINE_KERNEL = "define_openreg_kernel"
HOST_SCALARS = "openreg_host_scalars"


class HostScalarLines(PythonWrapperCodegen):
    """A wrapper whose calls of kernels say which arguments are CPU tensors."""

    def generate_kernel_call(
        self,
        kernel_name: str,
        call_args: Any,
        *,
        device: torch.device | None = None,
        arg_types: Any = None,
        **kwargs: Any,
    ) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if kwargs.get("triton", True):
            pass  # its arguments are checked by the launch
        elif is_proxy(device):
            positions = _host_scalar_positions(call_args, arg_types, device)
            meta = kwargs.get("inductor_meta") or {}
            kwargs["inductor_meta"] = {**meta, HOST_SCALARS: positions}
        elif device == HOST:
            _check_host_kernel(kernel_name, call_args, arg_types)
        super().generate_kernel_call(
            kernel_name, call_args, device=device, arg_types=arg_types, **kwargs
        )


class _OpenRegLines(HostScalarLines):
    """What differs from the CPU's wrapper."""

    _are_streams_named = False

    def make_allocation(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        if not is_proxy(device):
            return str(
                super().make_allocation(
                    name, device, dtype, shape, stride, allocation_shape, is_pinned
                )
            )
        sizes = self.codegen_python_shape_tuple(shape)
        allocated = self.codegen_python_shape_tuple(
            shape if allocation_shape is None else allocation_shape
        )
        strides = self.codegen_python_shape_tuple(stride)
        line = f"{name} = {_EMPTY_STRIDED}({allocated}, {strides}, {dtype}, {device.index})"
        return line if sizes == allocated else f"{line}.as_strided({sizes}, {strides})"

    def define_kernel(self, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> None:
        compile_call = "async_compile.cpp_pybinding("
        if kernel_body.startswith(compile_call):
            kernel_body = (
                f"{_DEFINE_KERNEL}(async_compile, '{kernel_name}', "
                f"{kernel_body.removeprefix(compile_call)}"
            )
        super().define_kernel(kernel_name, kernel_body, *args, **kwargs)

    def define_user_defined_triton_kernel(self, *args: Any, **kwargs: Any) -> Any:
        """Writes the definition of a program's own kernel, which says what it is compiled for."""
        device = V.graph.get_current_device_or_throw()
        with V.graph.set_current_device(original(device)):
            return super().define_user_defined_triton_kernel(*args, **kwargs)

    def generate_fallback_kernel(self, node: Any) -> None:
        # An operator on an event has no device, so the scheduler cannot order it after the kernels
        # before it.
        if node.get_device() is None:
            V.graph.scheduler.flush()
        super().generate_fallback_kernel(node)

    def _generate_kernel_call_helper(
        self,
        kernel_name: str,
        call_args: Any,
        *,
        device: torch.device | None = None,
        **kwargs: Any,
    ) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if not is_proxy(device):
            super()._generate_kernel_call_helper(kernel_name, call_args, device=device, **kwargs)
            return
        if kwargs.get("triton", True):
            self.writeline(f"with torch.{DEVICE_TYPE}.device({device.index}):")
            with self.wrapper_call.indent(), _lines_of_device():
                super()._generate_kernel_call_helper(
                    kernel_name, call_args, device=original(device), **kwargs
                )
            return
        arguments = [*call_args, str(device.index)]
        positions = kwargs["inductor_meta"][HOST_SCALARS]
        if positions:
            arguments.append(repr(positions))
        self.writeline(self.wrap_kernel_call(f"{kernel_name}.launch", arguments))

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        """Enters a stream of the program's. Inductor defines their names for a GPU only."""
        if not self._are_streams_named:
            self._are_streams_named = True
            scheduler = V.graph.scheduler
            device = scheduler.current_device
            index = device.index if device is not None and is_proxy(device) else ""
            stream = f"torch.{DEVICE_TYPE}.current_stream({index})"
            self.writeline(f"{_internals.get_stream_name(0)} = {stream}")
            self.imports.splice(
                "from torch._dynamo.graph_bytecode_inputs import get_external_object_by_index"
            )
            for known, object_index in scheduler.stream_idx_to_user_obj_idx.items():
                self.writeline(
                    f"{_internals.get_stream_name(known)} = "
                    f"get_external_object_by_index({object_index})"
                )
        return super().codegen_cuda_stream_enter(stream_idx)

    def val_to_arg_str(self, s: Any, type_: Any = None) -> str:
        if isinstance(s, (torch.device, tuple, list)):
            s = map_aggregate(s, lambda x: original(x) if isinstance(x, torch.device) else x)
        return str(super().val_to_arg_str(s, type_))

    def benchmark_compiled_module(self, output: IndentedBuffer) -> None:
        lines = IndentedBuffer()
        super().benchmark_compiled_module(lines)
        text = lines.getvalue().replace("device='cpu:", f"device='{DEVICE_TYPE}:")
        output.splice(text)


@contextlib.contextmanager
def _lines_of_device() -> Iterator[None]:
    """Has lines about streams say what they do on the device and not on its proxy."""
    before = V.graph.device_ops
    V.graph.device_ops = _internals.get_device_op_overrides(DEVICE_TYPE)
    try:
        yield
    finally:
        V.graph.device_ops = before


def _host_scalar_positions(call_args: Any, arg_types: Any, device: torch.device) -> tuple[int, ...]:
    """Returns which arguments of a kernel on the device are CPU tensors.

    This is determined when the call is generated and not when the line becomes text, because an
    inner graph has only its own buffers.
    """
    return tuple(
        index
        for index, (argument, argument_type) in enumerate(zip(call_args, arg_types, strict=True))
        if str(argument_type).endswith("*") and not _is_on(argument, device)
    )


def _check_host_kernel(kernel_name: str, call_args: Any, arg_types: Any) -> None:
    """Raises NotImplementedError if a kernel on the CPU has an argument in device memory."""
    for argument, argument_type in zip(call_args, arg_types, strict=True):
        if not str(argument_type).endswith("*"):
            continue
        own = _device_of(argument)
        if own is not None and (is_proxy(own) or is_ours(own)):
            raise NotImplementedError(
                f"torch.compile: expected kernel {kernel_name} on {HOST} to use tensors there, got "
                f"'{argument}' on {original(own)}"
            )


def _device_of(name: str) -> torch.device | None:
    """The device of the buffer or constant of this name, which may be a proxy."""
    buffer = V.graph.try_get_buffer(name)
    if buffer is not None:
        return buffer.get_device()
    constant = V.graph.constants.get(name)
    return None if constant is None else constant.device


def _is_on(name: str, device: torch.device) -> bool:
    """Whether the buffer of this name is on the device that a kernel runs on.

    Errors: NotImplementedError if it is on another device of this type.
    """
    own = _device_of(name)
    if own == device or own == original(device):
        return True
    if own is None or own.type != "cpu" or is_proxy(own):
        raise NotImplementedError(
            f"torch.compile: expected a kernel on {original(device)} to read tensors there and CPU "
            f"scalars, got '{name}' on {own and original(own)}"
        )
    return False


def note_what_is_no_capture() -> None:
    """Sets the reason why the graph cannot be captured, where Inductor does not detect it."""
    devices = V.graph.device_node_mapping
    # Inductor counts on partitions, which leave out what runs on the CPU.
    host = devices.get(HOST)
    if host is not None and not V.graph.disable_cudagraphs_reason:
        V.graph.disable_cudagraphs_reason = f"it uses the CPU ({host.name})"
    for device in [device for device in devices if is_proxy(device)]:
        del devices[device]


def refuse_cpp() -> None:
    """Raises NotImplementedError for a graph with cpp_wrapper that does not support it."""
    if DEVICE_TYPE != "cuda" or not (V.aot_compilation or config.cpp_wrapper):
        return
    # For CUDA, torch runs a wrapper in Python, on copies of the inputs, before it generates the one
    # in C++.
    if V.aot_compilation:
        raise NotImplementedError(
            f"AOTInductor: expected a program on the CPU, got one on {DEVICE_TYPE}. "
            "Keep it with torch.export.save(program), and compile it where it is loaded: "
            "torch.compile(torch.export.load(...).module())"
        )
    raise NotImplementedError(
        f"torch.compile: expected cpp_wrapper=False for tensors on {DEVICE_TYPE}, got True. "
        "Their wrappers are in Python: leave torch._inductor.config.cpp_wrapper and "
        "TORCHINDUCTOR_CPP_WRAPPER off"
    )


def create_wrapper(
    new: Callable[[], PythonWrapperCodegen],
    new_inner: Callable[..., PythonWrapperCodegen],
    is_subgraph: bool,
    subgraph_name: str | None,
    parent_wrapper: PythonWrapperCodegen | None,
    partition_signatures: Any,
) -> PythonWrapperCodegen:
    """Returns the wrapper of a graph, or of a graph inside one.

    Args:
        new: Makes the wrapper of a graph.
        new_inner: Makes that of a graph inside one, from the last three arguments.
        is_subgraph: Whether the graph is inside one. This and the others are those of Inductor's.
        subgraph_name: Of the inner graph.
        parent_wrapper: That of the graph around it.
        partition_signatures: Of the inner graph if it is a partition.
    """
    if is_subgraph:
        assert subgraph_name is not None
        assert parent_wrapper is not None
        return new_inner(subgraph_name, parent_wrapper, partition_signatures)
    refuse_cpp()
    return new()


class OpenRegWrapper(_OpenRegLines):
    """The wrapper of a graph with tensors on our devices."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Returns the wrapper of a graph, or of a graph inside one."""
        return create_wrapper(
            OpenRegWrapper._new,
            OpenRegSubgraphWrapper,
            is_subgraph,
            subgraph_name,
            parent_wrapper,
            partition_signatures,
        )

    @staticmethod
    def _new() -> PythonWrapperCodegen:
        note_what_is_no_capture()
        return OpenRegWrapper()

    def write_header(self) -> None:
        """Writes the imports."""
        super().write_header()
        self.header.splice(
            f"""
            from torch_openreg.extras.inductor._kernels import define_kernel as {_DEFINE_KERNEL}
            from torch_openreg.extras.inductor._kernels import empty_strided as {_EMPTY_STRIDED}
            """,
            strip=True,
        )


class OpenRegSubgraphWrapper(_OpenRegLines, SubgraphPythonWrapperCodegen):
    """The function in a wrapper that runs an inner graph."""
