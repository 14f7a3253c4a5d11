#include "csrc/extras/ipc/StorageMessage.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>

#include "csrc/core/Digest.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"

namespace c10::openreg {
namespace {

// The two processes may have different builds.
uint64_t checksumOf(const StorageMessage& message) {
  Digest digest;
  digest.add(&message, offsetof(StorageMessage, checksum));
  return digest.value();
}

}  // namespace

std::string StorageMessage::write() {
  checksum = checksumOf(*this);
  return std::string(reinterpret_cast<const char*>(this), sizeof(*this));
}

StorageMessage StorageMessage::read(const std::string& bytes) {
  StorageMessage message{};
  TORCH_CHECK(bytes.size() == sizeof(message), "receiving a storage: expected ", sizeof(message),
              " bytes, got ", bytes.size());
  std::memcpy(&message, bytes.data(), sizeof(message));
  TORCH_CHECK(message.checksum == checksumOf(message),
              "receiving a storage: the bytes are damaged");
  TORCH_CHECK(message.version == kVersion, "receiving a storage: expected a message of version ",
              uint64_t{kVersion}, ", got one of version ", message.version,
              "; use one version of torch_openreg in all processes");
  return message;
}

Device StorageMessage::deviceHere() const {
  TORCH_CHECK(device >= 0 && device < device_count(), "receiving a storage: the sender's device ",
              device, " does not exist here; this process has ", static_cast<int>(device_count()),
              " devices");
  return Device(kDeviceType, static_cast<DeviceIndex>(device));
}

}  // namespace c10::openreg
