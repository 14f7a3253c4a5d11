#include "memory/arena.h"

#include <openreg/device.h>
#include <openreg/memory.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>

#include "base/mutex.h"
#include "base/os.h"
#include "base/setting.h"

namespace openreg {
namespace {

std::atomic<const AddressSpace*> address_space{nullptr};

std::array<std::atomic<Arena*>, OPENREG_MAX_DEVICES> arenas;  // never reset

constexpr uintptr_t round_down(uintptr_t value, size_t step) { return value - value % step; }
constexpr uintptr_t aligned_up(uintptr_t value, size_t step) {
  return round_down(value + step - 1, step);
}

constexpr size_t stored_size(size_t requested) {
  return aligned_up(requested, OPENREG_MEMORY_ALIGNMENT);
}

// Of all devices. Processes have 128 TiB on x86-64.
constexpr size_t most_addresses = size_t{16} << 40;

// The addresses of a device, as a multiple of its memory: enough for a dozen streams, each with
// reservations of 9/8 of the memory for its large blocks and of 1/8 for its small ones.
constexpr size_t most_address_factor = 16;

}  // namespace

orError_t AddressSpace::reserve(const AddressSpace** space) {
  const size_t capacity = settings().device_memory;
  const size_t count = settings().visible_devices.size();
  const size_t mappings = settings().has_memory_protection ? 2 : 1;
  void* base = nullptr;
  size_t stride = capacity;
  const bool is_representable = capacity <= std::numeric_limits<size_t>::max() / count / mappings;
  if (is_representable) {
    const size_t factor = most_addresses / (capacity * count * mappings);
    if (factor > 1) {
      stride = capacity * std::min(factor, most_address_factor);
      base = os::reserve_addresses(stride * count * mappings);
    }
    if (base == nullptr) {  // a limit of the machine, such as that of `ulimit -v`
      stride = capacity;
      base = os::reserve_addresses(stride * count * mappings);
    }
  }
  if (base == nullptr) {
    return fail(orErrorInitializationError,
                concat("cannot reserve the addresses of ", count, " devices of ", capacity,
                       " bytes; set a smaller OPENREG_DEVICE_MEMORY",
                       is_representable ? " (" + os::error_text("mmap") + ")" : ""));
  }
  *space =
      new AddressSpace{.device_base = reinterpret_cast<uintptr_t>(base),
                       .kernel_offset = mappings == 2 ? static_cast<ptrdiff_t>(stride * count) : 0,
                       .capacity = capacity,
                       .stride = stride,
                       .device_count = static_cast<int>(count)};
  address_space.store(*space, std::memory_order_release);
  return orSuccess;
}

const AddressSpace* AddressSpace::get() { return address_space.load(std::memory_order_acquire); }

int AddressSpace::device_of(uintptr_t address) const {
  if (address < device_base) return -1;
  const uintptr_t device = (address - device_base) / stride;
  return device < static_cast<uintptr_t>(device_count) ? static_cast<int>(device) : -1;
}

bool AddressSpace::is_kernel_address(uintptr_t address) const {
  return kernel_offset != 0 && device_of(address - static_cast<uintptr_t>(kernel_offset)) >= 0;
}

Arena::Arena(uintptr_t device_base, ptrdiff_t kernel_offset, size_t capacity, size_t stride)
    : base_(device_base),
      kernel_offset_(kernel_offset),
      capacity_(capacity),
      reserved_(device_base + capacity, device_base + stride) {
  free_size_ = round_down(capacity, OPENREG_MEMORY_ALIGNMENT);
  free_.emplace(base_, free_size_);
  free_by_size_.emplace(free_size_, base_);
}

uintptr_t Arena::allocate(size_t size) {
  if (size > capacity_) return 0;
  const size_t needed = stored_size(size);
  const Lock lock(mutex_);
  if (needed > free_size_ - reserved_.mapped_size()) return 0;
  const auto best = free_by_size_.lower_bound({needed, 0});
  if (best == free_by_size_.end()) return 0;
  const auto [free_size, address] = *best;
  live_.emplace(address, size);
  // From here on nothing throws: what is left of the free range keeps its nodes.
  Ranges::node_type range = free_.extract(address);
  Sizes::node_type indexed = free_by_size_.extract(best);
  free_size_ -= needed;
  if (free_size > needed) {
    range.key() = address + needed;
    range.mapped() = free_size - needed;
    indexed.value() = {free_size - needed, address + needed};
    free_.insert(std::move(range));
    free_by_size_.insert(std::move(indexed));
  }
  return address;
}

size_t Arena::release(uintptr_t address) {
  Sizes spare{{0, 0}};  // before anything has changed, as it may throw
  Ranges::node_type node;
  {
    const Lock lock(mutex_);
    node = live_.extract(address);
  }
  if (node.empty()) return 0;
  const size_t size = node.mapped();
  const uintptr_t end = address + stored_size(size);
  discard_pages(address, end);

  const Lock lock(mutex_);
  uintptr_t free_begin = address;
  uintptr_t free_end = end;
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == end) {
    free_end = next->first + next->second;
    erase_free(next++);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      free_begin = previous->first;
      erase_free(previous);
    }
  }
  clear(address, end, {free_begin, free_end - free_begin});
  Sizes::node_type indexed = spare.extract(spare.begin());
  indexed.value() = {free_end - free_begin, free_begin};
  node.key() = free_begin;
  node.mapped() = free_end - free_begin;
  free_.insert(std::move(node));
  free_by_size_.insert(std::move(indexed));
  free_size_ += free_end - free_begin;
  return size;
}

uintptr_t Arena::reserve(size_t size) {
  const Lock lock(mutex_);
  return reserved_.reserve(size);
}

bool Arena::end_reservation(uintptr_t address) {
  const Lock lock(mutex_);
  return reserved_.release(address);
}

bool Arena::map(uintptr_t address, size_t size) {
  const Lock lock(mutex_);
  if (size > free_size_ - reserved_.mapped_size() || !reserved_.is_unmapped(address, size)) {
    return false;
  }
  reserved_.map(address, size);
  return true;
}

bool Arena::unmap(uintptr_t address, size_t size) {
  Ranges spare{{0, 0}};  // before anything has changed, as it may throw
  if (!is_mapped(address, size)) return false;
  discard_pages(address, address + size);
  const Lock lock(mutex_);
  if (!reserved_.is_mapped(address, size)) return false;
  reserved_.unmap(address, size, spare);
  return true;
}

bool Arena::is_mapped(uintptr_t address, size_t size) const {
  const Lock lock(mutex_);
  return reserved_.is_mapped(address, size);
}

bool Arena::is_unmapped(uintptr_t address, size_t size) const {
  const Lock lock(mutex_);
  return reserved_.is_unmapped(address, size);
}

std::optional<Allocation> Arena::find(uintptr_t address) const {
  const Lock lock(mutex_);
  return find_locked(address);
}

std::optional<Allocation> Arena::try_find(uintptr_t address, bool* is_known) const {
  *is_known = false;
  if (!mutex_.try_lock()) return std::nullopt;
  const Lock lock(mutex_, std::adopt_lock);
  *is_known = true;
  return find_locked(address);
}

size_t Arena::free_size() const {
  const Lock lock(mutex_);
  return free_size_ - reserved_.mapped_size();
}

size_t Arena::largest_free_size() const {
  const Lock lock(mutex_);
  const size_t largest = free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
  return std::min(largest, free_size_ - reserved_.mapped_size());
}

bool Arena::is_valid() const {
  const Lock lock(mutex_);
  Ranges ranges = free_;
  size_t free_sum = 0;
  uintptr_t previous_end = 0;
  for (const auto& [begin, size] : free_) {
    if (begin == previous_end || !free_by_size_.contains({size, begin})) return false;
    previous_end = begin + size;
    free_sum += size;
  }
  for (const auto& [begin, size] : live_) {
    if (!ranges.emplace(begin, stored_size(size)).second) return false;
  }
  uintptr_t end = base_;
  for (const auto& [begin, size] : ranges) {
    if (begin < end || size == 0 || (begin - base_) % OPENREG_MEMORY_ALIGNMENT != 0) return false;
    end = begin + size;
  }
  return end <= base_ + capacity_ && free_sum == free_size_ &&
         free_.size() == free_by_size_.size() && reserved_.is_valid() &&
         reserved_.mapped_size() <= free_size_;
}

std::optional<Allocation> Arena::find_locked(uintptr_t address) const {
  if (address - base_ >= capacity_) return reserved_.find(address);
  auto after = live_.upper_bound(address);
  if (after == live_.begin()) return std::nullopt;
  const auto& [begin, size] = *std::prev(after);
  if (address - begin >= size) return std::nullopt;
  return Allocation{begin, size};
}

void Arena::erase_free(Ranges::iterator range) {
  free_size_ -= range->second;
  free_by_size_.erase({range->second, range->first});
  free_.erase(range);
}

// Makes the whole pages of a range zero.
void Arena::discard_pages(uintptr_t begin, uintptr_t end) {
  begin = aligned_up(begin, os::page_size());
  end = round_down(end, os::page_size());
  if (begin >= end) return;
  void* memory = reinterpret_cast<void*>(begin + static_cast<uintptr_t>(kernel_offset_));
  if (!os::discard(memory, end - begin)) std::memset(memory, 0, end - begin);
}

// Makes what discard_pages() left of [begin, end) zero: its first and its last page, whole if
// the free range around it covers them.
void Arena::clear(uintptr_t begin, uintptr_t end, const Ranges::value_type& free_range) {
  const size_t page = os::page_size();
  const uintptr_t free_end = free_range.first + free_range.second;
  for (uintptr_t at : {round_down(begin, page), round_down(end - 1, page)}) {
    const uintptr_t from = std::max(at, begin);
    const uintptr_t to = std::min(at + page, end);
    if (to - from == page) continue;
    if (at >= free_range.first && at + page <= free_end) {
      discard_pages(at, at + page);
    } else {
      std::memset(reinterpret_cast<void*>(from + static_cast<uintptr_t>(kernel_offset_)), 0,
                  to - from);
    }
  }
}

void add_arena(int device, Arena& arena) {
  arenas[static_cast<size_t>(device)].store(&arena, std::memory_order_release);
}

Arena* arena_of(int device) {
  if (device < 0 || device >= OPENREG_MAX_DEVICES) return nullptr;
  return arenas[static_cast<size_t>(device)].load(std::memory_order_acquire);
}

}  // namespace openreg
