// Operators about streams.

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/library.h>

#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

void recordStream(Tensor& self, Stream stream) {
  c10::getDeviceAllocator(c10::openreg::kDeviceType)
      ->recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) { m.impl("record_stream", TORCH_FN(recordStream)); }

}  // namespace at::openreg
