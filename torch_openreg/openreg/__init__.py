"""The module ``torch.openreg``: devices, streams, events, memory and random numbers.

Names and behavior are those of ``torch.cuda``. The module initializes itself on first use.
Importing it and calling :func:`is_available` or :func:`device_count` initializes nothing.

Unless a function's description differs:

- any thread may call it, and streams and the current device are those of the calling thread;
- an argument ``device`` is an index, a string such as ``"openreg:1"``, a ``torch.device``, or None
  for the current device;
- a device that does not exist raises RuntimeError with the text ``The device index is out of
  range``, an argument of a wrong type TypeError, and another wrong value ValueError;
- sizes are in bytes.

Submodules: ``amp`` (mixed precision), ``comm`` (tensors spread over devices), ``memory``,
``profiler``, ``random``, ``sanitizer`` (finds work on several streams that nothing orders),
``sparse`` (types of sparse tensors), ``nccl`` and ``meta``.
"""

from typing import TYPE_CHECKING

import torch

from torch_openreg import _extras

# torch looks up names with an underscore in this module, hence the F401s.
from torch_openreg.openreg import (  # noqa: F401
    _gpu_trace,
    _utils,
    amp,
    comm,
    meta,
    nccl,
    sanitizer,
    sparse,
)
from torch_openreg.openreg._utils import MODULE_NAME
from torch_openreg.openreg.amp import (
    get_amp_supported_dtype,
    is_bf16_supported,
    is_tf32_supported,
)
from torch_openreg.openreg.devices import (  # noqa: F401
    _exchange_device,
    _get_device,
    _maybe_exchange_device,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_sync_debug_mode,
    is_available,
    set_device,
    set_sync_debug_mode,
    synchronize,
)
from torch_openreg.openreg.fallback import (
    fallback_copied_bytes,
    fallback_stats,
    get_fallback_mode,
    reset_fallback_stats,
    set_fallback_mode,
)
from torch_openreg.openreg.graphed_callables import make_graphed_callables
from torch_openreg.openreg.graphs import CUDAGraph, Graph, graph, graph_pool_handle
from torch_openreg.openreg.initialization import (  # noqa: F401
    DeferredOpenRegCallError,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    init,
    is_initialized,
)
from torch_openreg.openreg.ipc import ipc_collect
from torch_openreg.openreg.memory import (
    MemPool,
    caching_allocator_alloc,
    caching_allocator_delete,
    empty_cache,
    empty_host_cache,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from torch_openreg.openreg.random import (  # noqa: F401
    _get_default_generators,
    _get_generator,
    _set_rng_state_offset,
    get_offset,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_offset,
    set_rng_state,
    set_rng_state_all,
)
from torch_openreg.openreg.sanitizer import SanitizerError, SanitizerWarning
from torch_openreg.openreg.streams import (  # noqa: F401
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    _set_stream_by_id,
    _sleep,
    current_stream,
    default_stream,
    get_stream_from_external,
    is_current_stream_capturing,
    set_stream,
    stream,
)
from torch_openreg.openreg.tensor_types import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)

if TYPE_CHECKING or _extras.has("profiler"):
    from torch_openreg.openreg import profiler

__all__ = [
    "AcceleratorError",
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CUDAGraph",
    "CharTensor",
    "DeferredOpenRegCallError",
    "DoubleTensor",
    "Event",
    "ExternalStream",
    "FloatTensor",
    "Graph",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "MemPool",
    "OutOfMemoryError",
    "SanitizerError",
    "SanitizerWarning",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "amp",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "comm",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "empty_host_cache",
    "fallback_copied_bytes",
    "fallback_stats",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_fallback_mode",
    "get_offset",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "meta",
    "nccl",
    "profiler",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_fallback_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "sanitizer",
    "seed",
    "seed_all",
    "set_device",
    "set_fallback_mode",
    "set_offset",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "sparse",
    "stream",
    "synchronize",
    "use_mem_pool",
]


def _inductor_backend_init() -> None:
    """Registers the device type's backend of Inductor.

    Inductor of torch 2.15 and later calls it before its first compilation; see Note [How Inductor
    finds the package] in torch_openreg/inductor.
    """
    from torch_openreg import inductor  # noqa: F401


AcceleratorError = torch.AcceleratorError
OutOfMemoryError = torch.OutOfMemoryError

# Imported on first access; see __getattr__.
_initialized: bool
default_generators: tuple[torch.Generator, ...]

if not TYPE_CHECKING:

    def __dir__() -> list[str]:
        return sorted({*globals(), "default_generators"} - {"TYPE_CHECKING", "torch"})

    def __getattr__(name: str) -> object:
        if name == "_initialized":
            return is_initialized()
        if name == "default_generators":
            return _get_default_generators()
        if name in ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen"):
            # For Inductor; see Note [How Inductor finds the package] in torch_openreg/inductor.
            from torch_openreg import inductor

            return inductor
        if name == "profiler":
            raise AttributeError(_extras.explain(f"{MODULE_NAME}.profiler", "profiler"))
        raise AttributeError(f"module {MODULE_NAME!r} has no attribute {name!r}")
