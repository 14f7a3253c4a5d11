// Launches of kernels that own memory outside of the queue.
//
// A queue that is full holds the host back, and it is full by bytes, too (OPENREG_QUEUE_MEMORY).
// The runtime sees the bytes of a closure; those that it owns, such as a list of a thousand
// tensors, it is told: see Note [Bounded queues] in openreg/stream.h.
#pragma once

#include <openreg/stream.h>

#include "torch_openreg/aten/OpLaunch.h"

namespace at::openreg {

// describeOp() for a kernel with `size_t ownedBytes() const`, which is asked at the launch.
template <typename Kernel>
constexpr orKernel describeOwningOp(const char* name) {
  orKernel described = describeOp<Kernel>(name);
  described.owned_bytes = [](const void* closure) {
    return static_cast<const detail::InEnvironment<Kernel>*>(closure)->kernel.ownedBytes();
  };
  return described;
}

}  // namespace at::openreg
