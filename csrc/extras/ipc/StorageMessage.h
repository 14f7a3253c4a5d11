// The message that sends a storage to another process, as plain bytes.
#pragma once

#include <c10/core/Device.h>
#include <openreg/ipc.h>

#include <cstdint>
#include <string>
#include <type_traits>

namespace c10::openreg {

struct StorageMessage {
  static constexpr uint64_t kVersion = 1;  // incremented with every change of the members

  uint64_t version = kVersion;
  orIpcMemHandle_t memory;
  orIpcEventHandle_t event;  // the pending work when the storage was sent
  orIpcLeaseHandle_t lease;  // keeps the storage alive in the sender
  uint64_t offset;           // of the storage in the memory
  uint64_t size;             // 0: the handles are not set
  int64_t device;
  uint64_t checksum;  // of all bytes before it; the last member in every version

  // Sets the checksum and returns the bytes.
  std::string write();

  // Throws unless the bytes were returned by write() of this version. This does not validate the
  // numbers, because any process can compute the checksum.
  static StorageMessage read(const std::string& bytes);

  // Throws if this process has no such device.
  Device deviceHere() const;
};

static_assert(std::has_unique_object_representations_v<StorageMessage>, "every byte is checked");

}  // namespace c10::openreg
