// torch.histc of integers, which CUDA supports and the CPU does not. Floating-point tensors use the
// CPU's kernel.

#include <ATen/Dispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// Counts the numbers from `lower` to `upper` in bins of equal width; the last bin includes `upper`.
// If the bounds are equal, the minimum and maximum of the numbers are used. The counts have the
// type of the numbers, and may wrap.
void countIntegers(Tensor& counts, const Tensor& self, int64_t min, int64_t max) {
  // Wide enough for the bounds around the smallest and the largest int64.
  __int128 lower = min;
  __int128 upper = max;
  AT_DISPATCH_INTEGRAL_TYPES(self.scalar_type(), "histc", [&] {
    const Tensor numbers = self.contiguous();
    const auto* begin = numbers.const_data_ptr<scalar_t>();
    const auto* end = begin + numbers.numel();
    auto* bins = counts.mutable_data_ptr<scalar_t>();
    const int64_t bin_count = counts.numel();
    std::fill(bins, bins + bin_count, scalar_t(0));
    if (lower == upper && begin != end) {
      const auto [smallest, largest] = std::minmax_element(begin, end);
      lower = *smallest;
      upper = *largest;
    }
    if (lower == upper) {
      --lower;
      ++upper;
    }
    std::for_each(begin, end, [&](scalar_t number) {
      if (lower <= number && number <= upper) {
        const auto bin = static_cast<int64_t>((number - lower) * bin_count / (upper - lower));
        ++bins[std::min(bin, bin_count - 1)];
      }
    });
  });
}

Tensor histogramOfIntegers(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max) {
  const auto lower = min.to<int64_t>();
  const auto upper = max.to<int64_t>();
  TORCH_CHECK(bins > 0, "histc: expected bins to be positive, got ", bins);
  TORCH_CHECK(lower <= upper, "histc: expected max not to be less than min, got ", upper, " and ",
              lower);
  static CheckedDtypes checked;
  checked.check(self.scalar_type(), [&] {
    Tensor some = dummy(self.scalar_type(), {1});
    countIntegers(some, dummy(self.scalar_type(), {1}), 0, 1);
  });
  Tensor counts = at::empty({bins}, self.options().memory_format(MemoryFormat::Contiguous));
  enqueue<"aten::histc">(self.device(), countIntegers, counts, self, lower, upper);
  return counts;
}

void histogram(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  const Tensor& self = arguments[0].toTensor();
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    runFallback(op, keys, stack);
    return;
  }
  checkDevices(op, arguments);
  const Tensor counts = histogramOfIntegers(self, arguments[1].toInt(), arguments[2].toScalar(),
                                            arguments[3].toScalar());
  const bool has_out = arguments.size() > 4;
  Tensor result = has_out ? arguments[4].toTensor() : counts;
  if (has_out) {
    result.resize_(counts.sizes()).copy_(counts);
  }
  torch::jit::drop(*stack, arguments.size());
  torch::jit::push(*stack, std::move(result));
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("histc", torch::CppFunction::makeFromBoxedFunction<&histogram>());
  m.impl("histc.out", torch::CppFunction::makeFromBoxedFunction<&histogram>());
}

}  // namespace at::openreg
