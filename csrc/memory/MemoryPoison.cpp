#include "csrc/memory/MemoryPoison.h"

#include <openreg/openreg.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "csrc/core/Settings.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Launch.h"
#include "torch_openreg/core/TraceScope.h"

namespace c10::openreg {
namespace {

const Setting kPoison{"OPENREG_MEMORY_POISON", "0", "0 1",
                      "1: unused memory is filled with a pattern, and allocations are guarded."};

const Setting kQuarantine{"OPENREG_MEMORY_QUARANTINE", "256MiB", "<size>",
                          "With OPENREG_MEMORY_POISON=1, how much freed memory is not reused yet.",
                          "a size, such as 64MiB; 0: none"};

constexpr unsigned char kPattern = 0xff;
constexpr size_t kGuardSize = 512;

std::byte* kernelAddress(const std::byte* address) {
  std::ptrdiff_t offset = 0;
  OPENREG_CHECK(orGetKernelOffset(&offset));
  return const_cast<std::byte*>(address) + offset;
}

// The kernel that fills a block.
struct Fill {
  std::byte* kernel_address;
  size_t size;
  std::shared_ptr<std::atomic<bool>> is_done;

  void operator()() const {
    std::memset(kernel_address, kPattern, size);
    is_done->store(true, std::memory_order_release);
  }
  void describe(orActivityRecord* record) const { WorkDescription::fill(size).describe(record); }
};

// The first changed byte in a range of device addresses, and the end of the last one. They are
// equal if all bytes hold the pattern.
std::pair<const std::byte*, const std::byte*> changedPart(const std::byte* begin,
                                                          const std::byte* end) {
  const auto is_changed = [](std::byte byte) { return byte != std::byte{kPattern}; };
  const std::byte* kernel_begin = kernelAddress(begin);
  const std::byte* kernel_end = kernel_begin + (end - begin);
  const std::byte* first = std::find_if(kernel_begin, kernel_end, is_changed);
  if (first == kernel_end) {
    return {end, end};
  }
  const std::byte* last =
      std::find_if(std::reverse_iterator(kernel_end), std::reverse_iterator(first), is_changed)
          .base();
  return {begin + (first - kernel_begin), begin + (last - kernel_begin)};
}

// How many bytes at a block's beginning a program may write.
size_t usedSize(const Block& block) { return block.is_allocated ? block.requested_size : 0; }

Corruption corruptionOf(const Block& block, const std::byte* begin, const std::byte* end) {
  return {block.device,
          block.address,
          usedSize(block),
          static_cast<size_t>(begin - block.address),
          static_cast<size_t>(end - begin),
          std::to_integer<unsigned char>(*kernelAddress(begin)),
          !block.is_allocated,
          block.allocationContext()};
}

}  // namespace

bool isPoisonOn() {
  static const bool is_on = kPoison.isOn();
  return is_on;
}

namespace {

std::atomic<bool> fills_new_memory{false};

}  // namespace

bool isNewMemoryFilled() {
  return isPoisonOn() || fills_new_memory.load(std::memory_order_relaxed);
}

void fillNewMemory() { fills_new_memory = true; }

void fillOnHost(void* address, size_t size) { std::memset(address, kPattern, size); }

size_t guardSize() { return isPoisonOn() ? kGuardSize : 0; }

size_t quarantineSize() {
  static const size_t size = isPoisonOn() ? kQuarantine.bytes() : 0;
  return size;
}

bool shouldQuarantine(const Block& block) {
  const OpenRegStream& stream = *block.stream;
  int is_alone = 0;
  return block.size <= quarantineSize() && block.pool->owner == nullptr &&
         block.extras->used_on.empty() && stream.isAlive() && !stream.isCapturing() &&
         orStreamIsAlone(&is_alone, stream.stream()) == orSuccess && is_alone != 0;
}

void fillOnStream(const Block& block) {
  const OpenRegStream& stream = *block.stream;
  if (stream.isAlive() && !stream.isCapturing()) {
    launchKernel<"poison">(stream,
                           Fill{kernelAddress(block.address), block.size, block.extras->is_filled});
  }
}

std::optional<Corruption> findCorruption(const Block& block) {
  const bool is_filled = block.extras != nullptr && block.extras->is_filled != nullptr &&
                         block.extras->is_filled->load(std::memory_order_acquire);
  if (!is_filled) {
    return std::nullopt;
  }
  const auto [begin, end] =
      changedPart(block.address + usedSize(block), block.address + block.size);
  return begin == end ? std::nullopt : std::optional(corruptionOf(block, begin, end));
}

void PoisonedRanges::forget(const Block& block) {
  const std::byte* begin = block.address;
  const std::byte* end = block.address + block.size;
  auto range = end_by_begin_.lower_bound(begin);
  if (range != end_by_begin_.begin() && std::prev(range)->second > begin) {
    --range;
  }
  while (range != end_by_begin_.end() && range->first < end) {
    const auto [old_begin, old_end] = *range;
    range = end_by_begin_.erase(range);
    if (old_begin < begin) {
      end_by_begin_.emplace(old_begin, begin);
    }
    if (old_end > end) {
      end_by_begin_.emplace(end, old_end);
    }
  }
}

std::optional<Corruption> PoisonedRanges::findCorruption(const Block& block) const {
  const std::byte* block_end = block.address + block.size;
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (auto range = end_by_begin_.lower_bound(block.address);
       range != end_by_begin_.end() && range->first < block_end; ++range) {
    const auto [changed_begin, changed_end] = changedPart(range->first, range->second);
    if (changed_begin != changed_end) {
      begin = begin == nullptr ? changed_begin : begin;
      end = changed_end;
    }
  }
  return begin == nullptr ? std::nullopt : std::optional(corruptionOf(block, begin, end));
}

void PoisonedRanges::fill(const Block& block) {
  const std::byte* position = block.address;
  const std::byte* block_end = block.address + block.size;
  std::vector<std::pair<const std::byte*, const std::byte*>> gaps;
  for (auto range = end_by_begin_.lower_bound(position);
       range != end_by_begin_.end() && range->first < block_end; ++range) {
    gaps.emplace_back(position, range->first);
    position = range->second;
  }
  gaps.emplace_back(position, block_end);
  for (const auto& [begin, end] : gaps) {
    if (begin < end) {
      fillOnHost(kernelAddress(begin), static_cast<size_t>(end - begin));
      end_by_begin_.emplace(begin, end);
    }
  }
}

void PoisonedRanges::fillAll(const Block& block) {
  fillOnHost(kernelAddress(block.address), block.size);
}

}  // namespace c10::openreg
