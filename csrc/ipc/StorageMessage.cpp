#include "csrc/ipc/StorageMessage.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <string_view>

namespace c10::openreg {
namespace {

uint64_t checksumOf(const StorageMessage& message) {
  const std::string_view checked(reinterpret_cast<const char*>(&message),
                                 offsetof(StorageMessage, checksum));
  return std::hash<std::string_view>{}(checked);
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
              "receiving a storage: the bytes are damaged, or from another version of openreg");
  return message;
}

}  // namespace c10::openreg
