// A storage on its way to another process: plain bytes.
#pragma once

#include <c10/core/Device.h>
#include <openreg/ipc.h>

#include <cstdint>
#include <string>
#include <type_traits>

namespace c10::openreg {

struct StorageMessage {
  static constexpr uint64_t kVersion = 1;  // raised with every change of the members

  uint64_t version = kVersion;
  orIpcMemHandle_t memory;
  orIpcEventHandle_t event;  // what was pending when the storage was sent
  orIpcLeaseHandle_t lease;  // keeps the storage alive in its own process
  uint64_t offset;           // of the storage in the memory
  uint64_t size;             // 0: the handles are not set
  int64_t device;
  uint64_t checksum;  // of all bytes before it; the last member in every version

  // Sets the checksum and returns the bytes.
  std::string write();

  // Throws if the bytes are not what write() returned, or what that of another version did. That
  // says nothing of the numbers: every process can make the checksum fit.
  static StorageMessage read(const std::string& bytes);

  // Throws if this process has no such device.
  Device deviceHere() const;
};

static_assert(std::has_unique_object_representations_v<StorageMessage>, "every byte is checked");

}  // namespace c10::openreg
