#include "csrc/memory/MemPool.h"

#include <cstdio>
#include <thread>

#include "csrc/memory/Allocator.h"
#include "torch_openreg/core/Functions.h"

namespace c10::openreg {

MemPool::MemPool(PoolOptions options)
    : device_(current_device()), id_(createPoolId(/*by_user=*/true)) {
  retainPool(device_, id_);
  setPoolOptions(device_, id_, options);
}

MemPool::~MemPool() {
  if (isInBadFork()) {
    return;
  }
  try {
    releasePool(device_, id_);
    if (poolUseCount(device_, id_) == 0) {
      emptyPool(device_, id_);  // nobody needs its addresses, as a graph would
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "openreg: a memory pool's memory stays reserved: %s\n",
                 error.what_without_backtrace());
  }
}

int MemPool::useCount() const { return poolUseCount(device_, id_); }

void beginAllocateOnThread(int64_t device, MempoolId_t pool) {
  const std::thread::id thread = std::this_thread::get_id();
  beginAllocateToPool(resolveDeviceIndex(device), pool, [thread](const OpenRegStream&) {
    return std::this_thread::get_id() == thread;
  });
}

void endAllocateOnThread(int64_t device, MempoolId_t pool) {
  endAllocateToPool(resolveDeviceIndex(device), pool);
  releasePool(resolveDeviceIndex(device), pool);
}

}  // namespace c10::openreg
