// The capture mode of a thread; see Note [Unsafe calls] in openreg/graph.h.
#pragma once

#include <openreg/graph.h>

#include "torch_openreg/core/Exception.h"

namespace c10::openreg {

// Allows unsafe calls on the calling thread during captures. For the backend's own bookkeeping,
// such as the memory of its caches, which is not part of a graph.
class RelaxedCaptureGuard {
 public:
  RelaxedCaptureGuard() { OPENREG_WARN_IF_FAILED(orThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCaptureGuard(const RelaxedCaptureGuard&) = delete;
  RelaxedCaptureGuard& operator=(const RelaxedCaptureGuard&) = delete;
  ~RelaxedCaptureGuard() { OPENREG_WARN_IF_FAILED(orThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  orStreamCaptureMode mode_ = orStreamCaptureModeRelaxed;
};

}  // namespace c10::openreg
