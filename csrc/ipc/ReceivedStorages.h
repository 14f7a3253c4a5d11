// What this process has received. See Note [Life of a shared storage].
#pragma once

#include <c10/core/Storage.h>
#include <openreg/ipc.h>

#include <memory>

#include "csrc/ipc/StorageMessage.h"

namespace c10::openreg {

// The memory that a message names, and its lease. Both end with the object.
class ReceivedMemory {
 public:
  // Opens the memory, then takes the lease.
  // Errors: throws if either cannot be done, or if the message's storage is not a part of the
  // memory that was shared, on its device. The lease can be taken by another call then.
  explicit ReceivedMemory(const StorageMessage& message);
  ReceivedMemory(const ReceivedMemory&) = delete;
  ReceivedMemory& operator=(const ReceivedMemory&) = delete;
  ~ReceivedMemory();

  // The storage's part of the memory.
  void* data() const { return data_; }
  size_t size() const { return size_; }
  Device device() const { return device_; }

 private:
  void place(const StorageMessage& message);

  const Device device_;
  const size_t size_;
  orIpcLease_t lease_ = nullptr;
  void* base_ = nullptr;
  void* data_ = nullptr;
};

// The storage in the memory: the one that is there already, which has a lease of its own, or a new
// one that owns the memory. It is used on the current stream.
Storage storageOf(std::shared_ptr<ReceivedMemory> memory);

// Lets go of memory whose storage was freed while its stream was capturing.
void releaseDeferred();

}  // namespace c10::openreg
