// Differences between the supported releases of torch, each with the release that introduced it.
// torch_openreg/_torch_release.py is the same for Python; torch_openreg/_version.py lists the
// releases.
#pragma once

#include <torch/headeronly/version.h>

#define OPENREG_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||          \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// 2.14: c10::GeneratorImpl::philox_state, for counter-based generators.
#define OPENREG_TORCH_HAS_PHILOX_STATE OPENREG_TORCH_AT_LEAST(2, 14)

// 2.14: libkineto::IActivityProfilerSession::toggleCollectionDynamic, to pause a session.
#define OPENREG_TORCH_HAS_DYNAMIC_COLLECTION OPENREG_TORCH_AT_LEAST(2, 14)

// 2.14: aten::_scaled_grouped_mm_v2 is structured, so it takes lists of tensors as ITensorListRef.
#define OPENREG_TORCH_HAS_STRUCTURED_GROUPED_PRODUCT OPENREG_TORCH_AT_LEAST(2, 14)

// 2.14: at::HostAllocator::record_history and related functions.
#define OPENREG_TORCH_HAS_PINNED_HISTORY OPENREG_TORCH_AT_LEAST(2, 14)

// 2.14: attention gives queries, keys and values of three dimensions a batch of one, shares one
// head of keys and values among those of the queries, and has groups of heads in CUDA's
// memory-efficient algorithm.
#define OPENREG_TORCH_HAS_SHARED_HEADS_IN_ATTENTION OPENREG_TORCH_AT_LEAST(2, 14)

// 2.14: ProfilerStateBase::getGlobal, which shares the state of a profile of the process.
#define OPENREG_TORCH_HAS_OWNED_PROFILER_STATE OPENREG_TORCH_AT_LEAST(2, 14)
