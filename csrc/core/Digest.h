// Hashes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace c10::openreg {

// For tables: the high bits of a product with it depend on all bits of the other factor. It is 2^64
// divided by the golden ratio.
inline constexpr uint64_t kHashFactor = 0x9E3779B97F4A7C15;

// FNV-1a, which does not depend on the build, for messages between processes.
class Digest {
 public:
  void add(const void* bytes, size_t size) {
    const auto* byte = static_cast<const unsigned char*>(bytes);
    for (const auto* end = byte + size; byte != end; ++byte) {
      addByte(*byte);
    }
  }

  // The bytes of the number, the lowest first.
  void add(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
      addByte(static_cast<unsigned char>(value >> shift));
    }
  }

  uint64_t value() const { return value_; }

 private:
  void addByte(unsigned char byte) { value_ = (value_ ^ byte) * 0x100000001b3; }

  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace c10::openreg
