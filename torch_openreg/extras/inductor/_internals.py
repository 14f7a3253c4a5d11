"""The undocumented parts of Inductor that this package uses, and a check that they exist.

Everything else in this package uses names of this module, also those that it only imports. Those
for registration and for passes are interfaces; the others may move in each version of torch.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import compile_fx, config, cudagraph_utils, ir
from torch._inductor import utils as inductor_utils
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import AotCodeCompiler, CodeCacheFuture, LambdaFuture
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    get_device_op_overrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.cudagraph_utils import CUDAGraphPolicy
from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import (
    clone,
    fallback_node_due_to_unsupported_type,
    fallbacks,
    lowerings,
)
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.stream_utils import get_stream_name
from torch._inductor.utils import IndentedBuffer, make_codegen_buffer
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.interpreter import Interpreter
from torch.fx.node import has_side_effect, map_aggregate
from torchgen.aoti.fallback_ops import inductor_fallback_ops

from torch_openreg.openreg._utils import DEVICE_TYPE

_WHAT = f"torch.compile on {DEVICE_TYPE}"  # in error texts

# Inductor's reason for a graph that it could capture if its device were CUDA.
NO_CUDA_DEVICE = "multiple devices: "

# Functions that we override or call, with the parameters that we count on.
_FUNCTIONS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (GraphLowering, "get_attr", ("target", "args", "kwargs")),
    (GraphLowering, "add_tensor_constant", ("data", "name")),
    (GraphLowering, "constant_name", ("name", "device_override")),
    (GraphLowering, "make_subgraph", ("gm", "example_inputs", "subgraph_name")),
    (GraphLowering, "add_device_info", ("device",)),
    (GraphLowering, "try_get_buffer", ("buffer_name",)),
    (AotCodeCompiler, "compile", ("graph", "device_type")),
    (AsyncCompile, "cpp_pybinding", ("argtypes", "source_code")),
    (PythonWrapperCodegen, "create", ("is_subgraph", "subgraph_name", "parent_wrapper")),
    (PythonWrapperCodegen, "write_header", ()),
    (
        PythonWrapperCodegen,
        "make_allocation",
        ("name", "device", "dtype", "shape", "stride", "allocation_shape", "is_pinned"),
    ),
    (PythonWrapperCodegen, "define_kernel", ("kernel_name", "kernel_body")),
    (PythonWrapperCodegen, "define_user_defined_triton_kernel", ("kernel", "configs")),
    (
        PythonWrapperCodegen,
        "generate_kernel_call",
        ("kernel_name", "call_args", "device", "arg_types", "inductor_meta"),
    ),
    (
        PythonWrapperCodegen,
        "_generate_kernel_call_helper",
        ("kernel_name", "call_args", "device", "inductor_meta"),
    ),
    (PythonWrapperCodegen, "codegen_cuda_stream_enter", ("stream_idx",)),
    (PythonWrapperCodegen, "val_to_arg_str", ("s",)),
    (PythonWrapperCodegen, "benchmark_compiled_module", ("output",)),
    (CppWrapperCpu, "add_device_include", ("device",)),
    (CppWrapperCpu, "codegen_device", ("device",)),
    (CppWrapperCpu, "codegen_device_idx", ("device", "device_id")),
    (CppWrapperCpu, "codegen_model_constructor", ()),
    (CppWrapperCpu, "generate_input_output_runtime_checks", ()),
    (CppWrapperCpu, "finalize_prefix", ()),
    (CppWrapperCpu, "get_c_shim_func_name", ("kernel", "device")),
    (CppWrapperCpu, "_generate_kernel_call_helper", ("kernel_name", "call_args", "arg_types")),
    (CppWrapperCpu, "generate_fallback_kernel_with_runtime_lookup", ("op_overload", "raw_args")),
    (ir.DeviceCopy, "create", ("x", "device", "non_blocking")),
    (compile_fx, "_recursive_post_grad_passes", ("gm",)),
    (CUDAGraphPolicy, "should_wrap", ("compiled_graph",)),
)


def _check() -> None:
    """Raises ImportError if a function, or one of its parameters, no longer exists."""
    for owner, name, parameters in _FUNCTIONS:
        function = getattr(owner, name, None)
        where = f"{owner.__name__}.{name}"
        if function is None:
            raise ImportError(f"{_WHAT}: expected torch {torch.__version__} to have {where}")
        missing = set(parameters) - set(inspect.signature(function).parameters)
        if missing:
            raise ImportError(
                f"{_WHAT}: expected {where} of torch {torch.__version__} to have "
                f"the parameters {', '.join(sorted(missing))}"
            )
    reasons = cudagraph_utils.check_multiple_devices_or_any_cpu_nodes
    if NO_CUDA_DEVICE not in inspect.getsource(reasons):
        raise ImportError(f"{_WHAT}: expected {reasons.__name__} to contain '{NO_CUDA_DEVICE}'")
    if "args_iter" not in inspect.getsource(Interpreter.placeholder):
        raise ImportError(f"{_WHAT}: expected Interpreter.placeholder to read args_iter")


_check()


def is_post_grad_pass_of_subgraph() -> bool:
    """Whether the calling pass runs on a graph inside the one that is being compiled.

    Inductor runs its passes on the inner graphs first, and compares these with the outer one
    afterwards. Only the calling function distinguishes them.
    """
    code = inspect.unwrap(compile_fx._recursive_post_grad_passes).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None and frame.f_back is not None and frame.f_back.f_code is code


Lowering = Callable[..., Any]


def lowers_itself(function: Lowering) -> Lowering:
    """Lets a graph call a function that Inductor calls, with IR nodes, when it lowers the graph."""
    setattr(function, "_inductor_lowering_function", True)  # noqa: B010
    return function
