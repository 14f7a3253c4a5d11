// torch.linalg.lstsq, with the algorithms that CUDA has.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "csrc/aten/fallback/Fallback.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// CUDA has one algorithm, "gels", which the CPU has, too. The CPU's default is another one.
void leastSquares(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  const auto index = op.schema().argumentIndexWithName("driver");
  c10::IValue& driver = (*stack)[stack->size() - op.schema().arguments().size() + *index];
  if (!driver.isNone()) {
    std::string name = driver.toStringRef();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char letter) { return std::tolower(letter); });
    TORCH_CHECK(name == "gels",
                "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA");
  }
  driver = "gels";
  runFallback(op, keys, stack);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  if (c10::openreg::servesCuda()) {
    m.impl("linalg_lstsq.out", torch::CppFunction::makeFromBoxedFunction<&leastSquares>());
  }
}

}  // namespace at::openreg
