// Waits that torch may reach while its caller holds Python's global interpreter lock (GIL).
//
// torch's own bindings keep the GIL when they seed a generator, empty a cache, copy a storage or
// make an array of a tensor. Another thread may need the GIL before the wait can end, so it is
// released meanwhile. The backend knows no Python: the bindings provide the two functions.
#pragma once

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

struct BlockingHooks {
  void* (*enter)();            // releases the GIL if the calling thread holds it
  void (*leave)(void* state);  // undoes the enter() that returned the state
};

// Called once, before any wait. Without hooks a region does nothing.
OPENREG_EXPORT void setBlockingHooks(BlockingHooks hooks);

// Between construction and destruction the calling thread does not hold the GIL, unless its caller
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

// Until it is destroyed, the calling thread keeps the GIL, if it has it: torch's caller holds a
// lock that other threads acquire while they have the GIL. This one would wait for the GIL with the
// lock held, and the other one for the lock with the GIL.
class OPENREG_EXPORT CallerHoldsLock {
 public:
  CallerHoldsLock();
  CallerHoldsLock(const CallerHoldsLock&) = delete;
  CallerHoldsLock& operator=(const CallerHoldsLock&) = delete;
  ~CallerHoldsLock();
};

}  // namespace c10::openreg
