#include "torch_openreg/aten/OpLaunch.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace at::openreg {

void waitForCurrentStream(c10::Device device, const char* operation) {
  c10::openreg::getCurrentOpenRegStream(device.index()).synchronize(operation);
}

void checkNotCapturing(const c10::openreg::OpenRegStream& stream, const char* operation) {
  if (C10_UNLIKELY(stream.isCapturing())) {
    stream.synchronize(operation);
  }
}

void enterWorkerEnvironment(int num_threads) {
  static thread_local at::AutoDispatchBelowADInplaceOrView below_autograd;
  static thread_local int current_num_threads = at::get_num_threads();
  if (C10_UNLIKELY(current_num_threads != num_threads)) {
    at::set_num_threads(num_threads);
    current_num_threads = num_threads;
  }
}

}  // namespace at::openreg
