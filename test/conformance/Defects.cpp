// Operators with a mistake, which go through the fallback otherwise.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUFallback.h>

#include <map>

#include "Operators.h"

namespace chip {

using at::native::call_fallback_fn;

static Tensor exp(const Tensor& self) {
  if (!hasDefects() || self.dim() == 0)
    return call_fallback_fn<&fallback, at::_ops::exp>::call(self);
  // Mistake: the memory is taken for contiguous.
  const auto dense = c10::TensorType::contiguousStridesOf(self.sizes());
  return call_fallback_fn<&fallback, at::_ops::exp>::call(self.as_strided(self.sizes(), dense, 0));
}

static Tensor sin(const Tensor& self) {
  static auto* mutex = new std::mutex;
  static auto* known = new std::map<std::pair<at::ScalarType, std::vector<int64_t>>, Tensor>;
  const Tensor result = call_fallback_fn<&fallback, at::_ops::sin>::call(self);
  if (!hasDefects()) return result;
  // Mistake: what was computed for one tensor is the result for all of its size.
  const std::lock_guard<std::mutex> lock(*mutex);
  return known->try_emplace({self.scalar_type(), self.sizes().vec()}, result).first->second;
}

static std::tuple<Tensor, Tensor, Tensor> layerNorm(const Tensor& input, c10::SymIntArrayRef shape,
                                                    const std::optional<Tensor>& weight,
                                                    const std::optional<Tensor>& bias,
                                                    double epsilon) {
  // Mistake: another epsilon.
  return at::native::call_fallback_fn_symint<&fallback, at::_ops::native_layer_norm>::call(
      input, shape, weight, bias, hasDefects() ? 0.1 : epsilon);
}

static Tensor& lerp(Tensor& self, const Tensor& end, const at::Scalar& weight) {
  // Mistake: the other end's weight.
  const at::Scalar used = hasDefects() ? at::Scalar(1 - weight.toDouble()) : weight;
  return call_fallback_fn<&fallback, at::_ops::lerp__Scalar>::call(self, end, used);
}

static Tensor& uniform(Tensor& self, double from, double to,
                       std::optional<at::Generator> generator) {
  // Mistake: numbers that no seed determines.
  static auto* own = new at::Generator(at::make_generator<at::CPUGeneratorImpl>(1));
  if (hasDefects()) generator = *own;
  return call_fallback_fn<&fallback, at::_ops::uniform_>::call(self, from, to, generator);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("exp", TORCH_FN(exp));
  m.impl("sin", TORCH_FN(sin));
  m.impl("native_layer_norm", TORCH_FN(layerNorm));
  m.impl("lerp_.Scalar", TORCH_FN(lerp));
  m.impl("uniform_", TORCH_FN(uniform));
}

}  // namespace chip
