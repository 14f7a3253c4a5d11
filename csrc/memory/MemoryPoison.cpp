#include "csrc/memory/MemoryPoison.h"

#include <openreg/openreg.h>

#include <algorithm>

#include "csrc/core/Settings.h"
#include "torch_openreg/core/Exception.h"

namespace c10::openreg {
namespace {

constexpr unsigned char kPattern = 0xff;
constexpr size_t kGuardSize = 512;

}  // namespace

bool isPoisonOn() {
  static const bool is_on = isSettingOn(orSettingIndex_OPENREG_MEMORY_POISON);
  return is_on;
}

size_t guardSize() { return isPoisonOn() ? kGuardSize : 0; }

void poison(Block& block) {
  block.is_poisoned = isPoisonOn() && block.stream.isAlive() && !block.stream.isCapturing();
  if (block.is_poisoned) {
    OPENREG_CHECK(orMemsetAsync(block.address, kPattern, block.size, block.stream.handle()));
  }
}

std::optional<Corruption> findCorruption(const Block& block) {
  // The owner of a private pool may write to its free blocks: a graph does at each replay.
  const bool is_checked =
      block.is_poisoned && (block.is_allocated || (block.isFree() && block.pool->owner == nullptr));
  if (!is_checked) {
    return std::nullopt;
  }
  std::ptrdiff_t kernel_offset = 0;
  OPENREG_CHECK(orGetKernelOffset(&kernel_offset));
  const auto* begin = reinterpret_cast<const unsigned char*>(block.address) + kernel_offset;
  const auto* end = begin + block.size;
  const auto is_changed = [](unsigned char byte) { return byte != kPattern; };
  const auto* first = std::find_if(begin + block.requested_size, end, is_changed);
  if (first == end) {
    return std::nullopt;
  }
  const auto* last =
      std::find_if(std::reverse_iterator(end), std::reverse_iterator(first), is_changed).base();
  return Corruption{block.device,
                    block.address,
                    block.requested_size,
                    static_cast<size_t>(first - begin),
                    static_cast<size_t>(last - first),
                    *first,
                    !block.is_allocated,
                    block.allocation_context};
}

}  // namespace c10::openreg
