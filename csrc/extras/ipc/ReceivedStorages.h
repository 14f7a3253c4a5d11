// The storages that this process has received. See Note [Life of a shared storage].
#pragma once

#include <c10/core/Storage.h>
#include <openreg/ipc.h>

#include <memory>

#include "csrc/extras/ipc/StorageMessage.h"

namespace c10::openreg {

// The memory named by a message, and its lease. The destructor releases both.
class ReceivedMemory {
 public:
  // Opens the memory, then takes the lease.
  // Errors: throws if either fails, or if the message's storage is not within the shared memory, on
  // its device. In that case the lease is not taken.
  explicit ReceivedMemory(const StorageMessage& message);
  ReceivedMemory(const ReceivedMemory&) = delete;
  ReceivedMemory& operator=(const ReceivedMemory&) = delete;
  ~ReceivedMemory();

  // The storage's part of the memory.
  void* data() const { return data_; }
  size_t size() const { return size_; }
  Device device() const { return device_; }

 private:
  const Device device_;
  const size_t size_;
  orIpcLease_t lease_ = nullptr;
  void* base_ = nullptr;
  void* data_ = nullptr;
};

// The storage in the memory: the existing one, which has its own lease, or a new one that owns the
// memory. Its stream is the current one.
Storage storageOf(std::shared_ptr<ReceivedMemory> memory);

// Releases memory whose storage was freed while its stream was capturing.
void releaseDeferred();

}  // namespace c10::openreg
