#include "csrc/extras/cuda/CudaHooks.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace at::openreg {

namespace {

std::atomic<int64_t>& maxSizeOfPlanCache(c10::DeviceIndex device) {
  static auto* sizes = [] {
    constexpr int64_t kDefault = 4096;  // cuFFT's
    auto* made = new std::vector<std::atomic<int64_t>>(c10::openreg::device_count());
    std::fill(made->begin(), made->end(), kDefault);
    return made;
  }();
  return sizes->at(c10::openreg::resolveDeviceIndex(device));
}

}  // namespace

int64_t CudaHooks::cuFFTGetPlanCacheMaxSize(c10::DeviceIndex device) const {
  return maxSizeOfPlanCache(device);
}

void CudaHooks::cuFFTSetPlanCacheMaxSize(c10::DeviceIndex device, int64_t max_size) const {
  TORCH_CHECK(max_size >= 0, "max_size of the cuFFT plan cache: expected 0 or more, got ",
              max_size);
  maxSizeOfPlanCache(device) = max_size;
}

namespace {

// Note [Place of the hooks]
// at::detail::getCUDAHooks() creates the hooks at its first call and never replaces them, and
// `import torch` calls it before it loads backends. So ours is constructed in the memory of torch's
// object, the default one or, in a build with CUDA, that of libtorch_cuda: none of the classes has
// members, and they differ only in their virtual functions. Python checks afterwards that torch
// uses ours.
void placeCudaHooks() {
  static_assert(sizeof(CudaHooks) == sizeof(at::CUDAHooksInterface) &&
                alignof(CudaHooks) == alignof(at::CUDAHooksInterface));
  auto& hooks = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  constexpr std::string_view kHooksOfBuild = "N2at4cuda6detail9CUDAHooksE";
  if (typeid(hooks) == typeid(at::CUDAHooksInterface) || typeid(hooks).name() == kHooksOfBuild) {
    hooks.~CUDAHooksInterface();
    new (&hooks) CudaHooks();
  }
}

struct HooksPlacement {
  HooksPlacement() {
    if (c10::openreg::servesCuda()) {
      placeCudaHooks();
    }
  }
} hooks_placement;

}  // namespace

}  // namespace at::openreg
