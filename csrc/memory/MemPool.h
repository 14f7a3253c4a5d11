// A program's own private pool; see Note [Memory of graphs] in BlockCache.h.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "csrc/memory/BlockPool.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// A user of a new pool of the current device. When the last user goes, so does the memory.
class OPENREG_EXPORT MemPool {
 public:
  explicit MemPool(PoolOptions options = {});
  MemPool(const MemPool&) = delete;
  MemPool& operator=(const MemPool&) = delete;
  ~MemPool();

  DeviceIndex device() const { return device_; }
  MempoolId_t id() const { return id_; }
  int useCount() const;

 private:
  const DeviceIndex device_;
  const MempoolId_t id_;
};

// Adds a user: what the calling thread allocates on the device comes from the pool until
// endAllocateOnThread(), which takes the user away. A negative index stands for the current device.
OPENREG_EXPORT void beginAllocateOnThread(int64_t device, MempoolId_t pool);
OPENREG_EXPORT void endAllocateOnThread(int64_t device, MempoolId_t pool);

}  // namespace c10::openreg
