// The capture mode of a thread; see Note [Unsafe calls] in openreg/graph.h.
#pragma once

#include <openreg/graph.h>

#include <optional>

#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Stream.h"

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

// The same if the thread's current stream of the device is capturing. For memory that the caches
// take from the runtime: that of a capture belongs to its graph, but a thread that takes memory for
// other work breaks the captures of others, as on CUDA.
class RelaxedIfCapturing {
 public:
  explicit RelaxedIfCapturing(DeviceIndex device = -1) {
    if (getCurrentOpenRegStream(device).isCapturing()) {
      guard_.emplace();
    }
  }

 private:
  std::optional<RelaxedCaptureGuard> guard_;
};

}  // namespace c10::openreg
