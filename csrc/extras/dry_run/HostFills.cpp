#include "csrc/extras/dry_run/HostFills.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/fill_cpu_dispatch.h>
#include <ATen/ops/normal_cpu_dispatch.h>
#include <ATen/ops/uniform_cpu_dispatch.h>
#include <ATen/ops/zero_cpu_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <utility>

#include "csrc/extras/dry_run/DryRunObserver.h"

namespace at::openreg {
namespace {

bool isSkipped(const Tensor& self) {
  return self.nbytes() > kLargeHostBytes && (self.is_floating_point() || self.is_complex());
}

// The state of the generator follows the number of draws, as on the device.
void drawOne(const std::optional<Generator>& generator) {
  auto* const engine = at::get_generator_or_default<at::CPUGeneratorImpl>(
      generator, at::detail::getDefaultCPUGenerator());
  const std::lock_guard<std::mutex> lock(engine->mutex_);
  engine->random();
}

Tensor& uniform(Tensor& self, double from, double to, std::optional<Generator> generator) {
  if (isSkipped(self)) {
    drawOne(generator);
    return self;
  }
  return at::cpu::uniform_(self, from, to, std::move(generator));
}

Tensor& normal(Tensor& self, double mean, double std, std::optional<Generator> generator) {
  if (isSkipped(self)) {
    drawOne(generator);
    return self;
  }
  return at::cpu::normal_(self, mean, std, std::move(generator));
}

Tensor& zero(Tensor& self) { return isSkipped(self) ? self : at::cpu::zero_(self); }

Tensor& fillScalar(Tensor& self, const Scalar& value) {
  return isSkipped(self) ? self : at::cpu::fill_(self, value);
}

Tensor& fillTensor(Tensor& self, const Tensor& value) {
  return isSkipped(self) ? self : at::cpu::fill_(self, value);
}

// Checks the sizes as ever.
Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (isSkipped(self) && at::is_expandable_to(source.sizes(), self.sizes())) {
    return self;
  }
  return at::native::copy_(self, source, non_blocking);
}

// torch warns of kernels that replace others.
class DropWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

void startSkippingHostFills() {
  DropWarnings dropped;
  const c10::WarningUtils::WarningHandlerGuard guard(&dropped);
  // Leaked, because the end of a library removes its kernels.
  auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("uniform_", TORCH_FN(uniform));
  library->impl("normal_", TORCH_FN(normal));
  library->impl("zero_", TORCH_FN(zero));
  library->impl("fill_.Scalar", TORCH_FN(fillScalar));
  library->impl("fill_.Tensor", TORCH_FN(fillTensor));
  library->impl("copy_", TORCH_FN(copy));
}

}  // namespace at::openreg
