// Operators that ATen would decompose on a device like this one, but that run as a whole on the
// CPU: as one kernel instead of several, and with the CPU's bits where its kernel rounds
// differently. They use the fallback; see Note [Calls that repeat].

#include <torch/library.h>

#include "build/generated/facts/RunsAsWhole.h"
#include "csrc/aten/fallback/Fallback.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  for (const auto& entry : c10::openreg::facts::kRunsAsWhole.entries) {
    m.impl(entry.name.data(), torch::CppFunction::makeFromBoxedFunction<&runFallback>());
  }
}

}  // namespace at::openreg
