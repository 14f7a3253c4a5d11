// A lock for mutexes whose holders may take the GIL, to gather a stack or to call a Python factory.
#pragma once

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/Mutex.h"

namespace at::openreg {

// Holds a mutex for a block, and releases the GIL while it waits for the mutex.
class OPENREG_THREAD_ANNOTATION(scoped_lockable) LockWithoutGil {
 public:
  explicit LockWithoutGil(c10::openreg::Mutex& mutex) OPENREG_ACQUIRE(mutex) : mutex_(mutex) {
    const c10::openreg::BlockingRegion region;
    mutex_.lock();
  }
  ~LockWithoutGil() OPENREG_RELEASE() { mutex_.unlock(); }

  LockWithoutGil(const LockWithoutGil&) = delete;
  LockWithoutGil& operator=(const LockWithoutGil&) = delete;

 private:
  c10::openreg::Mutex& mutex_;
};

}  // namespace at::openreg
