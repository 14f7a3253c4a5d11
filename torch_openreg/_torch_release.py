"""What differs between the releases of torch that the sources serve, each with its release.

``include/torch_openreg/core/TorchRelease.h`` is the same for C++; ``_version.py`` lists the
supported releases and has the error text for others. Tests read this file, too.
"""

import torch

from torch_openreg._version import release_of

__all__ = [
    "HAS_ACCELERATOR_AUTOCAST",
    "HAS_ACCELERATOR_RANDOM",
    "HAS_CAPTURABLE_WHILE_COMPILING",
    "HAS_CHOLESKY",
    "HAS_CUBLAS_WORKSPACES",
    "HAS_DYNAMIC_COLLECTION",
    "HAS_GRAPH_HOOKS",
    "HAS_INDUCTOR_INIT",
    "HAS_OPTIMIZER_CHECK",
    "HAS_OWNED_PROFILER_STATE",
    "HAS_PHILOX_STATE",
    "HAS_PINNED_HISTORY",
    "HAS_PROFILER_PATTERNS",
    "HAS_SHARED_HEADS_IN_ATTENTION",
    "HAS_STRUCTURED_GROUPED_PRODUCT",
    "LATER_CUDA_FUNCTIONS",
    "TORCH_RELEASE",
]

# docs: differences
TORCH_RELEASE = tuple(map(int, release_of(str(torch.__version__)).split(".")))

# 2.14: torch.profiler._pattern_matcher was removed.
HAS_PROFILER_PATTERNS = TORCH_RELEASE < (2, 14)

# 2.14: torch.is_autocast_enabled() without a device type means the accelerator, before it CUDA.
HAS_ACCELERATOR_AUTOCAST = TORCH_RELEASE >= (2, 14)

# 2.14: torch.accelerator.random.
HAS_ACCELERATOR_RANDOM = TORCH_RELEASE >= (2, 14)

# 2.14: torch.Generator.philox_state, for generators that count.
HAS_PHILOX_STATE = TORCH_RELEASE >= (2, 14)

# 2.14: torch.profiler.profile.toggle_collection_dynamic reaches the sessions of devices.
HAS_DYNAMIC_COLLECTION = TORCH_RELEASE >= (2, 14)

# 2.14: ProfilerStateBase::getGlobal, which shares the state of a profile of the process.
HAS_OWNED_PROFILER_STATE = TORCH_RELEASE >= (2, 14)

# 2.14: the cache of pinned memory records the stacks of allocations.
HAS_PINNED_HISTORY = TORCH_RELEASE >= (2, 14)

# 2.14: aten::_scaled_grouped_mm_v2 is structured, and has an out variant.
HAS_STRUCTURED_GROUPED_PRODUCT = TORCH_RELEASE >= (2, 14)

# 2.14: torch.cuda.CUDAGraph ends a capture in two steps, with hooks between them, and instantiates.
HAS_GRAPH_HOOKS = TORCH_RELEASE >= (2, 14)

# CUDA functions in torch._C that releases after the first use.
LATER_CUDA_FUNCTIONS = {
    "_cuda_annotateMemory": (2, 14),
    "_cuda_memoryMetadataSupported": (2, 14),
    "_cuda_tunableop_get_cublaslt_requested_algo_count": (2, 14),
    "_cuda_tunableop_set_cublaslt_requested_algo_count": (2, 14),
    "_cuda_tunableop_clear_all": (2, 15),
    "_cuda_tunableop_pop_dynamic_dims_mask": (2, 15),
    "_cuda_tunableop_push_dynamic_dims_mask": (2, 15),
    "_cuda_tunableop_wildcard_fallback_enable": (2, 15),
    "_cuda_tunableop_wildcard_fallback_is_enabled": (2, 15),
}

# 2.14: torch.cholesky was removed, with its operator; torch.linalg.cholesky remains.
HAS_CHOLESKY = TORCH_RELEASE < (2, 14)

# 2.14: attention gives queries, keys and values of three dimensions a batch of one, shares one head
# of keys and values, and has groups of heads in CUDA's memory-efficient algorithm.
HAS_SHARED_HEADS_IN_ATTENTION = TORCH_RELEASE >= (2, 14)

# 2.15: Inductor calls the device module's _inductor_backend_init before its first compilation.
HAS_INDUCTOR_INIT = TORCH_RELEASE >= (2, 15)

# 2.15: Dynamo makes an optimizer capturable during the compilation alone, by a method of its own.
HAS_CAPTURABLE_WHILE_COMPILING = TORCH_RELEASE >= (2, 15)

# 2.15: captures of optimizers without the option capturable are refused on all accelerators.
HAS_OPTIMIZER_CHECK = TORCH_RELEASE >= (2, 15)

# 2.15: the caching allocator has no workspaces of cuBLAS, which makes its own.
HAS_CUBLAS_WORKSPACES = TORCH_RELEASE < (2, 15)

# docs: end
