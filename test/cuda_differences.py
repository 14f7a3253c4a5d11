"""Tests that fail with OPENREG_DEVICE_TYPE=cuda, and files that are not about it, with reasons.

A test that no longer fails is a failure, too. The sweeps have a separate list:
generic/known_gaps.py.
"""

__all__ = ["DIFFERENCES", "ONE_TYPE"]

# Files of tests for one device type; those in contract/ are about the source.
ONE_TYPE = {
    "aten/test_codegen.py": "about the generator",
    "conformance/test_kit.py": "runs the kit on both types itself",
    "core/test_guard_cpp.py": "a C++ program for PrivateUse1",
    "core/test_hooks.py": "about the hooks that torch has for PrivateUse1",
    "docs/test_debugging.py": "about the documentation",
    "docs/test_docs.py": "about the documentation",
    "docs/test_examples.py": "runs the examples for both types itself",
    "docs/test_paths_in_texts.py": "about the documentation",
    "docs/test_pictures.py": "about the documentation",
    "extras/distributed/test_failures.py": "starts many ranks; test_collectives.py is of both",
    "extras/distributed/test_upstream.py": "runs torch's tests on both types itself",
    "extras/inductor/test_cpp_wrapper.py": "refused in cuda mode, as cuda/test_compile.py expects",
    "extras/inductor/test_examples.py": "of one type; test_functions.py is of both",
    "extras/inductor/test_launches.py": "cuda/test_compile.py is its counterpart",
    "extras/inductor/test_packages.py": "refused in cuda mode, as cuda/test_compile.py expects",
    "python/test_autoload.py": "about the default type; cuda/test_loading.py is its counterpart",
    "python/test_demo.py": "the demo is a program of the default type",
    "python/test_ecosystem.py": "cuda/test_libraries.py is its counterpart, without the adapters",
    "python/test_extension.py": "has kernels for PrivateUse1; cuda/test_operators.py has CUDA's",
    "python/test_pytest_plugin.py": "runs pytest in both modes itself",
    "python/test_tensor_types.py": "torch.cuda.FloatTensor is in cuda/test_storages.py",
    "tools/test_bringup.py": "about any backend; its programs run on the default type",
    "tools/test_processes.py": "about the processes of test/run.py",
    "tools/test_report.py": "about the tables of a run",
    "tools/test_run.py": "about the runs",
}

_JOINED = (
    "CUDA's sum of two sparse tensors has the elements of both, as cuda/test_operators.py expects"
)
_METADATA = "torch keeps flags of a backend for PrivateUse1, and not for CUDA"

# docs: cuda-differences
DIFFERENCES: dict[str, str] = {
    "extras/distributed/test_training.py::TestTraining::test_ddp_name_PowerSGD": (
        "where CUDA is, torch's hook synchronizes it, also for a model on the CPU, and raises"
    ),
    "aten/test_layouts.py::TestSparse::test_in_place_operator_writes_its_argument": _JOINED,
    "aten/test_layouts.py::TestSparse::test_result_equals_the_cpu_s_of_add": _JOINED,
    "aten/test_operators.py::TestGroupNorm::test_gradients_are_the_cpu_s": (
        "torch makes the input of group_norm contiguous on CUDA, and the result has its strides"
    ),
    "extras/autocast/test_autocast.py::TestAutocast::"
    "test_unsupported_type_switches_it_off_with_a_warning": (
        "torch.autocast asks for no list of types on CUDA, and casts to float64"
    ),
    "core/test_device.py::TestModule::test_torch_finds_the_module": (
        "torch looks up the modules of backends for PrivateUse1"
    ),
    "extras/inductor/test_functions.py::TestFunctions::"
    "test_results_and_gradients_are_those_of_the_cpu_attention": (
        "the result of CUDA's attention has the order of [batch, length, heads] in memory"
    ),
    "extras/ipc/test_ipc.py::TestTensors::test_conjugate_and_negative_views_arrive": (
        "torch's messages of CUDA tensors leave out the bits of lazy views"
    ),
    "extras/ipc/test_ipc.py::TestTensors::test_storages_arrive": (
        "torch sends tensors on CUDA, and refuses their storages"
    ),
    "extras/profiler/test_profiler.py::TestOlderProfiler::test_emit_nvtx_says_that_there_is_none": (
        "torch.cuda.nvtx writes the ranges of torch.openreg.profiler"
    ),
    "extras/triton/test_inductor.py::TestInductor::test_where_it_is_not_possible": (
        "it is possible there"
    ),
    "core/test_errors.py::TestHostErrors::test_wrong_strides_of_scales_raise_at_the_call": (
        "the capability 8.0, which is posed by default, has no scaled products"
    ),
    "generic/test_ops_out.py::TestOut::test_out_narrow_copy": "CUDA has no narrow_copy.out",
    "generic/test_op_errors.py::TestErrors::test_errors_narrow_copy": (
        "CUDA's operator checks the dimension first, and raises IndexError"
    ),
    "python/test_call_errors.py::TestCallErrors::"
    "test_bad_contents_after_good_calls_raise_in_the_call_histogram": "CUDA has no histogram",
    "python/test_serialization.py::TestDLPack::"
    "test_capsule_goes_both_ways_without_a_copy_index_1": (
        "torch exports CUDA tensors of the current device only"
    ),
    "python/test_serialization.py::TestDLPack::test_objects_are_refused_by_torch_itself": (
        "torch knows CUDA in DLPack, and takes objects"
    ),
    "python/test_serialization.py::TestMetadata::test_conjugate_bit_travels_beside_them": _METADATA,
    "python/test_serialization.py::TestMetadata::"
    "test_flags_are_kept_on_the_device_and_dropped_on_the_cpu": _METADATA,
    "python/test_serialization.py::TestMetadata::test_flags_belong_to_one_tensor": _METADATA,
}
# docs: end
