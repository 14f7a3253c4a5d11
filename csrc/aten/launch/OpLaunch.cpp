#include "torch_openreg/aten/OpLaunch.h"

#include "csrc/core/SyncDebug.h"

namespace at::openreg {

void waitForCurrentStream(c10::Device device, const char* operation) {
  const auto stream = c10::openreg::getCurrentOpenRegStream(device.index());
  c10::openreg::reportSynchronization(operation);
  stream.synchronize(operation);
  c10::openreg::observe(&c10::openreg::Observer::streamSynchronization, stream);
}

void checkNotCapturing(const c10::openreg::OpenRegStream& stream, const char* operation) {
  if (C10_UNLIKELY(stream.isCapturing())) {
    stream.synchronize(operation);
  }
}

}  // namespace at::openreg
