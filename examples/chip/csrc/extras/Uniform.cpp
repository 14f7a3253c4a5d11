// Step 10 of docs/bring_up.md, a random operator that graphs capture. In full:
// csrc/aten/ops/RandomFills.cpp.
#include <ATen/native/CPUFallback.h>

#include "../aten/Operators.h"
#include "Random.h"

namespace chip {

// docs: chip-uniform
struct UniformKernel {
  static uint64_t mix(uint64_t bits) {  // a chip has Philox
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
  }
  void operator()(float* out, const std::shared_ptr<uint64_t>& key, uint64_t position, float from,
                  float to, int64_t count) const {
    const uint64_t begin = mix(*key + mix(position));  // *key: when the kernel runs
    for (int64_t i = 0; i < count; ++i) {
      const float unit = static_cast<float>(mix(begin + i) >> 40) * 0x1p-24f;
      out[i] = from + unit * (to - from);
    }
  }
};

static Tensor& uniform(Tensor& self, double from, double to, std::optional<at::Generator> given) {
  if (self.scalar_type() != at::kFloat || !self.is_contiguous()) {
    return at::native::call_fallback_fn<&fallback, at::_ops::uniform_>::call(self, from, to, given);
  }
  TORCH_CHECK(from <= to, "uniform_: expected from <= to, got from=", from, " and to=", to);
  const Stream stream = currentStream(self.device().index());
  const at::Generator host = generatorOf(given, stream.device_index()).host;
  const auto [key, position] = CapturedKeys::get().keyFor(host, stream);
  check(orLaunchKernel(handleOf(stream), UniformKernel{}, kernelAddress<float>(self), key, position,
                       static_cast<float>(from), static_cast<float>(to), self.numel()));
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("uniform_", TORCH_FN(uniform)); }
// docs: end

}  // namespace chip
