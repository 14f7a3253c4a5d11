// Where things first appeared in a list.
//
// Note [Long lists]
// An operator may take a list of many thousand tensors, each of which has to be told from those
// before it: the same tensor twice is one argument, and two on one storage stay on one storage. So
// whatever walks through arguments looks a tensor up in a time that does not depend on how many
// came before. Of the few arguments that most calls have, it compares each: that is faster than any
// table, and allocates nothing.
#pragma once

#include <c10/core/RefcountedDeleter.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace at::openreg {

// Memory, by its beginning and its size.
struct MemoryKey {
  const void* data;
  size_t nbytes;

  bool operator==(const MemoryKey& other) const = default;
};

// Equal for two storages exactly if one is an alias of the other.
inline const void* identityOf(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  return data.get_deleter() == &c10::refcounted_deleter
             ? data.get_context()
             : static_cast<const void*>(storage.unsafeGetStorageImpl());
}

// A map from keys to places, for one pass through a list. A key is a pointer, a size or a
// MemoryKey. Not thread-safe.
template <typename Key>
class FirstPlaces {
 public:
  // How many keys are compared one by one.
  static constexpr size_t kCompared = 16;

  // The place that the key was added with, if it was.
  std::optional<size_t> find(const Key& key) const {
    if (C10_LIKELY(table_.empty())) {
      const auto* found = std::find_if(entries_.begin(), entries_.end(),
                                       [&](const Entry& entry) { return entry.key == key; });
      return found == entries_.end() ? std::nullopt : std::optional<size_t>(found->place);
    }
    const uint32_t slot = table_[slotOf(key)];
    return slot == kFree ? std::nullopt : std::optional<size_t>(entries_[slot].place);
  }

  // Adds a key that find() does not find.
  void add(const Key& key, size_t place) {
    entries_.push_back({key, place});
    if (entries_.size() > kCompared && 2 * entries_.size() > table_.size()) {
      grow();
    } else if (!table_.empty()) {
      table_[slotOf(key)] = static_cast<uint32_t>(entries_.size() - 1);
    }
  }

  // The place that the key was added with before; if it was not, it is added with this one.
  size_t findOrAdd(const Key& key, size_t place) {
    const std::optional<size_t> found = find(key);
    if (!found.has_value()) {
      add(key, place);
    }
    return found.value_or(place);
  }

 private:
  struct Entry {
    Key key;
    size_t place;
  };

  static constexpr uint32_t kFree = static_cast<uint32_t>(-1);

  static uint64_t bitsOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
  static uint64_t bitsOf(size_t nbytes) { return nbytes; }
  static uint64_t bitsOf(const MemoryKey& key) { return bitsOf(key.data) ^ (key.nbytes << 48); }

  // Where the key is in the table, or belongs: at least half of it is free.
  size_t slotOf(const Key& key) const {
    // The high bits of a product depend on all bits; those of addresses differ in the middle.
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
    const size_t mask = table_.size() - 1;
    size_t slot = (bitsOf(key) * kGoldenRatio) >> shift_;
    while (table_[slot] != kFree && !(entries_[table_[slot]].key == key)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  void grow() {
    table_.assign(std::bit_ceil(8 * entries_.size()), kFree);
    shift_ = 64 - std::countr_zero(table_.size());
    for (size_t i = 0; i < entries_.size(); ++i) {
      table_[slotOf(entries_[i].key)] = static_cast<uint32_t>(i);
    }
  }

  c10::SmallVector<Entry, kCompared> entries_;
  std::vector<uint32_t> table_;  // indexes of entries; empty while there are few
  int shift_ = 0;
};

}  // namespace at::openreg
