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

// Between construction and destruction the calling thread does not hold the GIL.
class OPENREG_EXPORT BlockingRegion {
 public:
  BlockingRegion();
  BlockingRegion(const BlockingRegion&) = delete;
  BlockingRegion& operator=(const BlockingRegion&) = delete;
  ~BlockingRegion();

 private:
  void* state_;
};

}  // namespace c10::openreg
