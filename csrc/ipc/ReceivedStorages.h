// What this process has received. See Note [Life of a shared storage].
#pragma once

#include <c10/core/Storage.h>
#include <openreg/ipc.h>

#include <memory>

namespace c10::openreg {

// A lease, and the memory that was opened with it. Both end with the object.
class ReceivedMemory {
 public:
  // Throws if the lease cannot be taken or the memory cannot be opened.
  ReceivedMemory(const orIpcMemHandle_t& memory, const orIpcLeaseHandle_t& lease);
  ReceivedMemory(const ReceivedMemory&) = delete;
  ReceivedMemory& operator=(const ReceivedMemory&) = delete;
  ~ReceivedMemory();

  void* base() const { return base_; }

 private:
  orIpcLease_t lease_ = nullptr;
  void* base_ = nullptr;
};

// The storage of `size` bytes at `data` in the memory: the one that is there already, which has a
// lease of its own, or a new one that owns the memory. It is used on the current stream.
Storage storageOf(std::shared_ptr<ReceivedMemory> memory, void* data, size_t size,
                  DeviceIndex device);

// Lets go of memory whose storage was freed while its stream was capturing.
void releaseDeferred();

}  // namespace c10::openreg
