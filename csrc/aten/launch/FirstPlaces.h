// A map from list elements to the positions at which they first appeared.
//
// Note [Long lists]
// An operator may take a list of many thousand tensors. Each must be compared with those before it:
// the same tensor passed twice is one argument, and two tensors on one storage must stay on one
// storage. So a walk through the arguments must look up a tensor in constant time. For the few
// arguments that most calls have, comparing with each is faster than a hash table, and allocates
// nothing.
#pragma once

#include <c10/core/RefcountedDeleter.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/core/Digest.h"

namespace at::openreg {

// A memory range: its start and its size.
struct MemoryKey {
  const void* data;
  size_t nbytes;

  bool operator==(const MemoryKey& other) const = default;
};

// Equal for two storages if and only if they are aliases of each other.
inline const void* identityOf(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  return data.get_deleter() == &c10::refcounted_deleter
             ? data.get_context()
             : static_cast<const void*>(storage.unsafeGetStorageImpl());
}

// A map from keys to positions, for one pass through a list. A key is a pointer, a size or a
// MemoryKey. Not thread-safe.
template <typename Key>
class FirstPlaces {
 public:
  // Up to how many keys a search compares one by one.
  static constexpr size_t kCompared = 16;

  // The position that the key was added with, if it was added.
  std::optional<size_t> find(const Key& key) const {
    if (C10_LIKELY(table_.empty())) {
      const auto* found = std::find_if(entries_.begin(), entries_.end(),
                                       [&](const Entry& entry) { return entry.key == key; });
      return found == entries_.end() ? std::nullopt : std::optional<size_t>(found->place);
    }
    const uint32_t slot = table_[slotOf(key)];
    return slot == kFree ? std::nullopt : std::optional<size_t>(entries_[slot].place);
  }

  // Adds a key that is not in the map.
  void add(const Key& key, size_t place) {
    entries_.push_back({key, place});
    if (entries_.size() > kCompared && 2 * entries_.size() > table_.size()) {
      grow();
    } else if (!table_.empty()) {
      table_[slotOf(key)] = static_cast<uint32_t>(entries_.size() - 1);
    }
  }

  // The position of the key; a new key is added with `place`.
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

  // The slot of the key, or a free slot for it: at least half of the table is free.
  size_t slotOf(const Key& key) const {
    // Addresses differ in their middle bits.
    const size_t mask = table_.size() - 1;
    size_t slot = (bitsOf(key) * c10::openreg::kHashFactor) >> shift_;
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

// Appends the tensor of each alias: on the storage of the first alias that shares its storage, or
// what `make` returns.
template <typename Alias, typename Tensor, typename Make>
void appendTensors(const std::vector<Alias>& aliases, std::vector<Tensor>& tensors,
                   const Make& make) {
  tensors.reserve(aliases.size());
  FirstPlaces<MemoryKey> storages;
  for (size_t i = 0; i < aliases.size(); ++i) {
    const Alias& alias = aliases[i];
    const size_t first =
        alias.sharesStorageWith(alias)  // false for tensors without a storage to share
            ? storages.findOrAdd(MemoryKey{alias.storageData(), alias.storageNbytes()}, i)
            : i;
    tensors.push_back(first < i ? alias.tensorOnStorageOf(tensors[first]) : make(alias));
  }
}

}  // namespace at::openreg
