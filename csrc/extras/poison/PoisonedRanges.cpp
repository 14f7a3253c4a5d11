#include "csrc/extras/poison/PoisonedRanges.h"

#include <openreg/openreg.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "torch_openreg/core/Exception.h"

namespace c10::openreg {
namespace {

constexpr unsigned char kPattern = 0xff;

const std::byte* endOf(const Block& block) { return block.address + block.size; }

// How many bytes at a block's beginning a program may write.
size_t usedSize(const Block& block) { return block.is_allocated ? block.requested_size : 0; }

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

std::byte* kernelAddress(const std::byte* address) {
  std::ptrdiff_t offset = 0;
  OPENREG_CHECK(orGetKernelOffset(&offset));
  return const_cast<std::byte*>(address) + offset;
}

void fillOnHost(void* address, size_t size) { std::memset(address, kPattern, size); }

std::optional<Corruption> findCorruption(const Block& block) {
  const auto [begin, end] = changedPart(block.address + usedSize(block), endOf(block));
  return begin == end ? std::nullopt : std::optional(corruptionOf(block, begin, end));
}

PoisonedRanges::Ranges::const_iterator PoisonedRanges::firstBehind(const std::byte* address) const {
  const auto range = end_by_begin_.lower_bound(address);
  return range != end_by_begin_.begin() && std::prev(range)->second > address ? std::prev(range)
                                                                              : range;
}

bool PoisonedRanges::overlap(const Block& block) const {
  const auto range = firstBehind(block.address);
  return range != end_by_begin_.end() && range->first < endOf(block);
}

void PoisonedRanges::add(const Block& block) {
  forget(block);
  end_by_begin_.emplace(block.address, endOf(block));
}

void PoisonedRanges::forget(const Block& block) {
  const std::byte* begin = block.address;
  const std::byte* end = endOf(block);
  auto range = firstBehind(begin);
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
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (auto range = firstBehind(block.address);
       range != end_by_begin_.end() && range->first < endOf(block); ++range) {
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
  std::vector<std::pair<const std::byte*, const std::byte*>> gaps;
  for (auto range = firstBehind(position);
       range != end_by_begin_.end() && range->first < endOf(block); ++range) {
    gaps.emplace_back(position, range->first);
    position = range->second;
  }
  gaps.emplace_back(position, endOf(block));
  for (const auto& [begin, end] : gaps) {
    if (begin < end) {
      fillOnHost(kernelAddress(begin), static_cast<size_t>(end - begin));
      end_by_begin_.emplace(begin, end);
    }
  }
}

}  // namespace c10::openreg
