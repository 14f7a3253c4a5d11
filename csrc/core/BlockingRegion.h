// Releases Python's global interpreter lock (GIL) during waits.
//
// torch's own bindings keep the GIL when they seed a generator, empty a cache, copy a storage or
// convert a tensor to an array. Another thread may need the GIL before the wait can end, so it is
// released meanwhile. The backend does not depend on Python: the bindings register the two
// functions.
#pragma once

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

struct BlockingHooks {
  void* (*enter)();            // releases the GIL if the calling thread holds it
  void (*leave)(void* state);  // undoes the enter() that returned the state
};

// Call once, before any wait. Without hooks a region does nothing.
OPENREG_EXPORT void setBlockingHooks(BlockingHooks hooks);

// The calling thread does not hold the GIL during the lifetime of this object, unless its caller
// holds a lock: see CallerHoldsLock.
class OPENREG_EXPORT BlockingRegion {
 public:
  BlockingRegion();
  BlockingRegion(const BlockingRegion&) = delete;
  BlockingRegion& operator=(const BlockingRegion&) = delete;
  ~BlockingRegion();

 private:
  void* state_;
};

// During its lifetime, the calling thread keeps the GIL if it holds it, because torch's caller
// holds a lock that other threads acquire while they hold the GIL. Releasing the GIL would
// deadlock: this thread would wait for the GIL with the lock held, the other one for the lock with
// the GIL held.
class OPENREG_EXPORT CallerHoldsLock {
 public:
  CallerHoldsLock();
  CallerHoldsLock(const CallerHoldsLock&) = delete;
  CallerHoldsLock& operator=(const CallerHoldsLock&) = delete;
  ~CallerHoldsLock();
};

}  // namespace c10::openreg
