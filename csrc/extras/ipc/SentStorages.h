// The storages that this process has sent and keeps alive. See Note [Life of a shared storage].
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <optional>
#include <unordered_map>

#include "csrc/core/Mutex.h"
#include "torch_openreg/core/Event.h"

namespace c10::openreg {

// Any thread may call any function at any time. Storages are freed without holding a lock.
class SentStorages {
 public:
  static SentStorages& get();

  // Keeps the storage and the event alive until the lease has ended.
  void keep(unsigned long long lease, Storage storage, OpenRegEvent event);

  // The storage kept for a lease, if there is one.
  std::optional<Storage> find(unsigned long long lease);

  // Takes back the storage and event of a lease that cannot be taken any more. Throws if a receiver
  // has taken it.
  std::pair<Storage, OpenRegEvent> takeBack(unsigned long long lease);

  // Frees the storages of leases that have ended; returns how many are left. Checks whether holders
  // are alive if `checks_holders` is set, or if the number has doubled since the last check.
  size_t collect(bool checks_holders);

 private:
  struct Sent {
    Storage storage;
    OpenRegEvent event;
  };

  struct Resizing {
    size_t messages = 0;
    bool was_resizable = false;
  };

  Sent remove(unsigned long long lease) OPENREG_REQUIRES(mutex_);

  Mutex mutex_;
  std::unordered_map<unsigned long long, Sent> sent_ OPENREG_GUARDED_BY(mutex_);
  std::unordered_map<StorageImpl*, Resizing> resizing_ OPENREG_GUARDED_BY(mutex_);
  size_t next_check_ OPENREG_GUARDED_BY(mutex_) = 0;
};

}  // namespace c10::openreg
