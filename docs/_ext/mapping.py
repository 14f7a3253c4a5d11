"""From Python to the runtime: who reaches each function, and whether anything is missing."""

from bindings import Binding, bindings
from cpp import backend_functions, overrides, runtime_functions
from package import public_names
from sources import SourceError

# Virtual functions of torch that the backend implements -> who reaches them.
INTERFACES: dict[str, str] = {
    # --- c10::impl::DeviceGuardImplInterface
    "OpenRegGuardImpl::type": "every guard",
    "OpenRegGuardImpl::exchangeDevice": "the constructor of `c10::DeviceGuard`; "
    "`torch.accelerator.device_index`",
    "OpenRegGuardImpl::getDevice": "`torch.accelerator.current_device_index`",
    "OpenRegGuardImpl::setDevice": "`c10::DeviceGuard::set_device`; "
    "`torch.accelerator.set_device_index`; autograd's thread for the device",
    "OpenRegGuardImpl::uncheckedSetDevice": "the destructor of `c10::DeviceGuard`",
    "OpenRegGuardImpl::deviceCount": "`torch.accelerator.device_count`; "
    "autograd, for one thread per device",
    "OpenRegGuardImpl::getDeviceCapability": "`torch.accelerator.get_device_capability`",
    "OpenRegGuardImpl::synchronizeDevice": "`torch.accelerator.synchronize`",
    "OpenRegGuardImpl::getStream": "`torch.accelerator.current_stream`; autograd, around each node",
    "OpenRegGuardImpl::getDefaultStream": "C++ code, by `c10::impl::VirtualGuardImpl`",
    "OpenRegGuardImpl::getStreamFromGlobalPool": "callbacks of `torch.futures.Future`",
    "OpenRegGuardImpl::getNewStream": "`torch.Stream(device, priority)`",
    "OpenRegGuardImpl::exchangeStream": "`with torch.Stream(...)`; `torch.accelerator.set_stream`; "
    "`c10::StreamGuard`",
    "OpenRegGuardImpl::getStreamNativeHandle": "`torch.Stream.native_handle`",
    "OpenRegGuardImpl::queryStream": "`torch.openreg.Stream.query`",
    "OpenRegGuardImpl::synchronizeStream": "`torch.openreg.Stream.synchronize`",
    "OpenRegGuardImpl::isStreamCapturing": "`torch.Stream.is_capturing`",
    "OpenRegGuardImpl::recordDataPtrOnStream": "autograd, for gradients that cross streams; "
    "`torch.futures.Future`",
    "OpenRegGuardImpl::record": "`torch.openreg.Event.record`, "
    "`torch.openreg.Stream.record_event`; autograd",
    "OpenRegGuardImpl::block": "`torch.openreg.Event.wait`, `torch.openreg.Stream.wait_event`, "
    "`torch.openreg.Stream.wait_stream`; autograd",
    "OpenRegGuardImpl::queryEvent": "`torch.openreg.Event.query`",
    "OpenRegGuardImpl::synchronizeEvent": "`torch.openreg.Event.synchronize`",
    "OpenRegGuardImpl::elapsedTime": "`torch.openreg.Event.elapsed_time`",
    "OpenRegGuardImpl::destroyEvent": "the destructor of `torch.openreg.Event` and `c10::Event`",
    # --- at::PrivateUse1HooksInterface
    "OpenRegHooks::isBuilt": "`at::globalContext`",
    "OpenRegHooks::isAvailable": "`torch.accelerator.is_available`",
    "OpenRegHooks::hasPrimaryContext": "autograd, for the devices whose streams it orders",
    "OpenRegHooks::init": "`at::globalContext().lazyInitDevice`",
    "OpenRegHooks::deviceCount": "ATen, where it asks the hooks and not the guard",
    "OpenRegHooks::setCurrentDevice": "the same",
    "OpenRegHooks::getCurrentDevice": "the same",
    "OpenRegHooks::exchangeDevice": "the same",
    "OpenRegHooks::maybeExchangeDevice": "the same",
    "OpenRegHooks::isPinnedPtr": "`Tensor.is_pinned`",
    "OpenRegHooks::getPinnedMemoryAllocator": "`Tensor.pin_memory`, `torch.empty(pin_memory=True)`",
    "OpenRegHooks::getDeviceFromPtr": "`at::from_blob` without a device",
    "OpenRegHooksInterface::resizePrivateUse1Bytes": "`Tensor.resize_`, `UntypedStorage.resize_`",
    "OpenRegHooks::getDefaultGenerator": "`at::globalContext().defaultGenerator`",
    "OpenRegHooks::getNewGenerator": '`torch.Generator("openreg")`',
    # --- at::CUDAHooksInterface, with OPENREG_DEVICE_TYPE=cuda
    "CudaHooks::hasCUDA": "`at::hasCUDA`; the check of `torch_openreg._cuda`",
    "CudaHooks::current_device": "C++ code, by `at::detail::getCUDAHooks`",
    "CudaHooks::getCUDADeviceAllocator": "the same",
    "CudaHooks::getNumGPUs": "`at::getNumGPUs`",
    "CudaHooks::deviceSynchronize": "the same",
    "CudaHooks::showConfig": "`torch.__config__.show`",
    "CudaHooks::cuFFTGetPlanCacheMaxSize": "`torch.backends.cuda.cufft_plan_cache`",
    "CudaHooks::cuFFTSetPlanCacheMaxSize": "the same",
    "CudaHooks::cuFFTGetPlanCacheSize": "the same",
    "CudaHooks::cuFFTClearPlanCache": "the same",
    # --- c10::DeviceAllocator
    "OpenRegAllocator::allocate": "every tensor on the device",
    "OpenRegAllocator::raw_deleter": "`c10::Allocator::raw_allocate`, `raw_deallocate`",
    "OpenRegAllocator::is_simple_data_ptr": "`torch._lazy_clone`: no copy on write",
    "OpenRegAllocator::copy_data": "`c10::Allocator::clone`, for copy-on-write storage",
    "OpenRegAllocator::initialized": "`torch.accelerator.memory`, before it asks anything else",
    "OpenRegAllocator::emptyCache": "`torch.openreg.empty_cache`, `torch.accelerator.empty_cache`",
    "OpenRegAllocator::recordStream": "`Tensor.record_stream`",
    "OpenRegAllocator::getDeviceStats": "`torch.openreg.memory_stats`, "
    "`torch.openreg.memory_stats_as_nested_dict`, `torch.openreg.memory_summary`, "
    "`torch.openreg.memory_allocated`, `torch.openreg.max_memory_allocated`, "
    "`torch.openreg.memory_reserved`, `torch.openreg.max_memory_reserved`",
    "OpenRegAllocator::resetAccumulatedStats": "`torch.openreg.reset_accumulated_memory_stats`",
    "OpenRegAllocator::resetPeakStats": "`torch.openreg.reset_peak_memory_stats`, "
    "`torch.openreg.reset_max_memory_allocated`, `torch.openreg.reset_max_memory_cached`",
    "OpenRegAllocator::getMemoryInfo": "`torch.openreg.mem_get_info`, "
    "`torch.accelerator.get_memory_info`",
    # --- at::CachingHostAllocatorImpl
    "PinnedAllocator::allocate": "`Tensor.pin_memory`",
    "PinnedAllocatorImpl::allocate_host_memory": "`Tensor.pin_memory`, if the cache has no block",
    "PinnedAllocatorImpl::free_block": "`torch.openreg.empty_host_cache`, "
    "`torch.accelerator.empty_host_cache`",
    "PinnedAllocatorImpl::record_stream": "the cache, when a block that a copy used is freed",
    "PinnedAllocatorImpl::query_event": "the cache, before it gives a block out again",
    "PinnedAllocatorImpl::get_current_stream": "the cache",
    "PinnedAllocatorImpl::stream_is_capturing": "the cache",
    # --- c10::GeneratorImpl
    "OpenRegGeneratorImpl::set_current_seed": "`torch.Generator.manual_seed`",
    "OpenRegGeneratorImpl::current_seed": "`torch.Generator.initial_seed`",
    "OpenRegGeneratorImpl::seed": "`torch.Generator.seed`",
    "OpenRegGeneratorImpl::set_offset": "`torch.Generator.set_offset`, which raises",
    "OpenRegGeneratorImpl::get_offset": "`torch.Generator.get_offset`, which raises",
    "OpenRegGeneratorImpl::philox_state": "`torch.Generator.philox_state` of torch 2.14, which "
    "raises",
    "OpenRegGeneratorImpl::set_state": "`torch.Generator.set_state`",
    "OpenRegGeneratorImpl::get_state": "`torch.Generator.get_state`",
    "OpenRegGeneratorImpl::graphsafe_get_state": "`torch.Generator.graphsafe_get_state`",
    "OpenRegGeneratorImpl::graphsafe_set_state": "`torch.Generator.graphsafe_set_state`",
    "OpenRegGeneratorImpl::clone_impl": "`torch.Generator.clone_state`",
    # --- libkineto::IActivityProfiler
    "KinetoProfiler::name": "Kineto, for its log",
    "KinetoProfiler::availableActivities": "Kineto",
    "KinetoProfiler::configure": "`torch.profiler.profile.prepare_trace`",
    # --- libkineto::IActivityProfilerSession
    "TraceSession::start": "`torch.profiler.profile.start_trace`",
    "TraceSession::stop": "`torch.profiler.profile.stop_trace`",
    "TraceSession::errors": "Kineto",
    "TraceSession::toggleCollectionDynamic": "Kineto, since torch 2.14; "
    "`torch.profiler.profile.toggle_collection_dynamic` passes nothing on for PrivateUse1",
    "TraceSession::processTrace": "`torch.profiler.profile.stop_trace`",
    "TraceSession::getDeviceInfo": "`torch.profiler.profile.stop_trace`, for names of rows",
    "TraceSession::getResourceInfos": "the same",
    "TraceSession::getTraceBuffer": "`torch.profiler.profile.stop_trace`",
    "TraceSession::getDeviceProperties": "the same",
    "TraceSession::pushCorrelationId": "each operator that begins in a session",
    "TraceSession::popCorrelationId": "each operator that ends",
    "TraceSession::pushUserCorrelationId": "`torch.profiler.record_function`",
    "TraceSession::popUserCorrelationId": "the same",
    # --- torch::profiler::impl::ProfilerStubs
    "ProfilerStubs::record": "each operator, with `torch.autograd.profiler.profile(use_device=)`",
    "ProfilerStubs::elapsed": "the results of the same",
    "ProfilerStubs::mark": "torch's C++ profiler of old",
    "ProfilerStubs::rangePush": "the same",
    "ProfilerStubs::rangePop": "the same",
    "ProfilerStubs::enabled": "the same",
    "ProfilerStubs::onEachDevice": "the same",
    "ProfilerStubs::synchronize": "the same",
    # --- torch::profiler::impl::ProfilerStateBase
    "RangeState::profilerType": "torch, while `torch.openreg.profiler.emit_ranges` is on",
    "RangeState::reportMemoryUsage": "allocators, while the same is on and asks for memory",
    # --- at::GraphImplInterface
    "OpenRegGraph::capture_begin": "`torch.openreg.Graph.capture_begin`, `torch.openreg.graph`, "
    "`torch.accelerator.Graph`, as all below",
    "OpenRegGraph::capture_end": "`torch.openreg.Graph.capture_end`",
    "OpenRegGraph::instantiate": "`torch.openreg.Graph.instantiate`; the end of a capture",
    "OpenRegGraph::replay": "`torch.openreg.Graph.replay`; what "
    "`torch.openreg.make_graphed_callables` returns",
    "OpenRegGraph::reset": "`torch.openreg.Graph.reset`; the destructor",
    "OpenRegGraph::pool": "`torch.openreg.Graph.pool`",
    "OpenRegGraph::enable_debug_mode": "`torch.openreg.Graph.enable_debug_mode`",
    "OpenRegGraph::debug_dump": "`torch.openreg.Graph.debug_dump`",
}

# Public names of torch.openreg that need nothing below Python -> what they are.
PYTHON_ONLY: dict[str, str] = {
    "AcceleratorError": "the class `torch.AcceleratorError`",
    "CUDAGraph": "the class `torch.openreg.Graph`",
    "DeferredOpenRegCallError": "a class of errors",
    "OutOfMemoryError": "the class `torch.OutOfMemoryError`",
    "SanitizerError": "the class `torch.openreg.sanitizer.SanitizerError`",
    "SanitizerWarning": "the class `torch.openreg.sanitizer.SanitizerWarning`",
    "sanitizer": "the functions of `torch.openreg.sanitizer`",
    "MemPool": "holds a `torch_openreg._C._MemPool`",
    "get_amp_supported_dtype": "a constant",
    "is_tf32_supported": "a constant",
    "get_offset": "raises",
    "set_offset": "raises",
    "amp": "the classes of `torch.amp` for this device",
    "meta": "the kernels of `torch.ops.openreg` for the device `meta`",
    "nccl": "a constant",
    "comm": "the functions of `torch.nn.parallel.comm`",
    "sparse": "types of sparse tensors",
    "BFloat16Tensor": "a type of tensors",
    "BoolTensor": "a type of tensors",
    "ByteTensor": "a type of tensors",
    "CharTensor": "a type of tensors",
    "DoubleTensor": "a type of tensors",
    "FloatTensor": "a type of tensors",
    "HalfTensor": "a type of tensors",
    "IntTensor": "a type of tensors",
    "LongTensor": "a type of tensors",
    "ShortTensor": "a type of tensors",
}

# Functions whose only way down is another public function.
BY_ANOTHER: dict[str, str] = {
    "is_available": "device_count",
    "is_bf16_supported": "is_available",
    "device_of": "device",
    "get_device_capability": "get_device_properties",
    "get_device_name": "get_device_properties",
    "get_rng_state_all": "get_rng_state",
    "get_stream_from_external": "ExternalStream",
    "host_memory_stats": "host_memory_stats_as_nested_dict",
    "init": "_lazy_init",
    "set_rng_state_all": "set_rng_state",
    "set_stream": "_set_stream_by_id",
    "stream": "StreamContext",
    "default_generators": "_get_default_generators",
}


def interface_rows() -> list[tuple[str, str, list[str]]]:
    """Returns each virtual function with who reaches it and the runtime's functions it calls.

    Raises:
        SourceError: A virtual function of csrc is not in INTERFACES, or the other way round.
    """
    implemented = overrides()
    problems = [
        *(f"{n}: implemented, but not in INTERFACES" for n in implemented if n not in INTERFACES),
        *(f"{n}: in INTERFACES, but not implemented" for n in INTERFACES if n not in implemented),
    ]
    if problems:
        raise SourceError("docs/_ext/mapping.py:\n  " + "\n  ".join(problems))
    functions = backend_functions()
    return [
        (name, INTERFACES[name], runtime_functions(name) if name in functions else [])
        for name in INTERFACES
    ]


def check_public_names(rows: list[Binding]) -> None:
    """Checks that every public name of torch.openreg has a place in the mapping.

    Raises:
        SourceError: A name has none.
    """
    text = " ".join([*(name for row in rows for name in row.python), *INTERFACES.values()])
    missing = [
        name
        for name in public_names()
        if f"`torch.openreg.{name}`" not in text
        and f"`torch.openreg.{name}." not in text
        and name not in PYTHON_ONLY
        and name not in BY_ANOTHER
    ]
    if missing:
        raise SourceError(
            f"torch.openreg: no way to C++ known for {', '.join(missing)}; see docs/_ext/mapping.py"
        )


def complete_bindings() -> list[Binding]:
    """Returns all bindings, after checking that the whole mapping is complete."""
    rows = bindings()
    check_public_names(rows)
    interface_rows()
    return rows
