#include "memory/reserved.h"

#include <openreg/memory.h>

#include <algorithm>
#include <utility>

namespace openreg {
namespace {

using Ranges = ReservedAddresses::Ranges;

// The range that the address lies in, or the end.
Ranges::const_iterator range_of(const Ranges& ranges, uintptr_t address) {
  const auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return ranges.end();
  const auto range = std::prev(after);
  return address - range->first < range->second ? range : ranges.end();
}

bool contains(const Ranges& ranges, uintptr_t address, size_t size) {
  const auto range = range_of(ranges, address);
  return range != ranges.end() && size <= range->second - (address - range->first);
}

uintptr_t round_up(uintptr_t address) {
  constexpr uintptr_t step = OPENREG_MAPPING_GRANULARITY;
  return (address + step - 1) / step * step;
}

}  // namespace

ReservedAddresses::ReservedAddresses(uintptr_t begin, uintptr_t end)
    : begin_(round_up(begin)), end_(std::max(end, begin_)) {}

uintptr_t ReservedAddresses::reserve(size_t size) {
  uintptr_t free_begin = begin_;
  for (const auto& [address, reserved_size] : reserved_) {
    if (size <= address - free_begin) break;
    free_begin = address + reserved_size;
  }
  if (size > end_ - free_begin) return 0;
  reserved_.emplace(free_begin, size);
  return free_begin;
}

bool ReservedAddresses::release(uintptr_t address) {
  const auto range = reserved_.find(address);
  if (range == reserved_.end()) return false;
  const auto next = mapped_.lower_bound(address);
  if (next != mapped_.end() && next->first - address < range->second) return false;
  reserved_.erase(range);
  return true;
}

bool ReservedAddresses::is_reserved(uintptr_t address, size_t size) const {
  return contains(reserved_, address, size);
}

bool ReservedAddresses::is_mapped(uintptr_t address, size_t size) const {
  return is_reserved(address, size) && contains(mapped_, address, size);
}

bool ReservedAddresses::is_unmapped(uintptr_t address, size_t size) const {
  if (!is_reserved(address, size) || range_of(mapped_, address) != mapped_.end()) return false;
  const auto next = mapped_.lower_bound(address);
  return next == mapped_.end() || next->first - address >= size;
}

void ReservedAddresses::map(uintptr_t address, size_t size) {
  mapped_size_ += size;
  const uintptr_t reservation = range_of(reserved_, address)->first;
  const auto touches = [&](Ranges::iterator range) {
    return range_of(reserved_, range->first)->first == reservation;
  };
  const auto next = mapped_.lower_bound(address);
  const bool joins_next = next != mapped_.end() && next->first == address + size && touches(next);
  if (next != mapped_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address && touches(previous)) {
      previous->second += size + (joins_next ? next->second : 0);
      if (joins_next) mapped_.erase(next);
      return;
    }
  }
  if (joins_next) {
    Ranges::node_type node = mapped_.extract(next);
    node.key() = address;
    node.mapped() += size;
    mapped_.insert(std::move(node));
    return;
  }
  try {
    mapped_.emplace(address, size);
  } catch (...) {
    mapped_size_ -= size;
    throw;
  }
}

void ReservedAddresses::unmap(uintptr_t address, size_t size, Ranges& spare) {
  const auto range = mapped_.find(range_of(mapped_, address)->first);
  const uintptr_t range_end = range->first + range->second;
  mapped_size_ -= size;
  if (address + size < range_end) {
    Ranges::node_type node = spare.extract(spare.begin());
    node.key() = address + size;
    node.mapped() = range_end - (address + size);
    mapped_.insert(std::move(node));
  }
  range->second = address - range->first;
  if (range->second == 0) mapped_.erase(range);
}

std::optional<Allocation> ReservedAddresses::find(uintptr_t address) const {
  const auto range = range_of(mapped_, address);
  if (range == mapped_.end()) return std::nullopt;
  return Allocation{range->first, range->second};
}

bool ReservedAddresses::is_valid() const {
  uintptr_t end = begin_;
  for (const auto& [address, size] : reserved_) {
    if (address < end || size == 0) return false;
    end = address + size;
  }
  size_t mapped_sum = 0;
  end = 0;
  for (const auto& [address, size] : mapped_) {
    if (address < end || size == 0 || !is_reserved(address, size)) return false;
    if (address == end && !reserved_.contains(address)) return false;
    end = address + size;
    mapped_sum += size;
  }
  return mapped_sum == mapped_size_ && (reserved_.empty() || reserved_.rbegin()->first < end_);
}

}  // namespace openreg
