// The storages whose contents are made up; see Note [Made-up values] in DryRunObserver.h.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "csrc/core/Mutex.h"

namespace at::openreg {

// By addresses of storages. Any thread may call any function.
class MadeUpMemory {
 public:
  bool contains(const void* storage) const {
    const c10::openreg::Lock lock(mutex_);
    return storages_.contains(storage);
  }

  void add(const void* storage) {
    const c10::openreg::Lock lock(mutex_);
    storages_.insert(storage);
  }

  void remove(const void* storage) noexcept {
    const c10::openreg::Lock lock(mutex_);
    storages_.erase(storage);
  }

 private:
  mutable c10::openreg::Mutex mutex_;  // a leaf
  std::unordered_set<const void*> storages_ OPENREG_GUARDED_BY(mutex_);
};

}  // namespace at::openreg
