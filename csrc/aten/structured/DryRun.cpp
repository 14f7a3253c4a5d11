#include "csrc/aten/structured/DryRun.h"

#include <ATen/DimVector.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/fill_cpu_dispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "torch_openreg/aten/KernelEnvironment.h"

namespace at::openreg {
namespace {

// Large enough for the windows of pooling kernels, small enough to be cheap in five dimensions.
constexpr int64_t kMaxKeptSize = 8;

// Sizes of stand-ins: small sizes are kept; larger ones are reduced such that equal sizes stay
// equal and different sizes stay different.
class SmallSizes {
 public:
  int64_t of(int64_t size) {
    if (size <= kMaxKeptSize) {
      return size;
    }
    const auto* seen = std::find(larger_.begin(), larger_.end(), size);
    const int64_t rank = seen - larger_.begin();
    if (seen == larger_.end()) {
      larger_.push_back(size);
    }
    return kMaxKeptSize + rank;
  }

 private:
  c10::SmallVector<int64_t, 16> larger_;
};

// A tensor filled with `value`. Zeros are valid indices, ones are valid divisors.
Tensor standInOf(const Tensor& input, IntArrayRef sizes, int value) {
  Tensor stand_in = at::detail::empty_cpu(sizes, input.scalar_type());
  if (value == 0) {
    std::memset(stand_in.mutable_data_ptr(), 0, stand_in.nbytes());
  } else {
    at::cpu::fill_(stand_in, value);
  }
  if (input.unsafeGetTensorImpl()->is_wrapped_number()) {
    stand_in.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return stand_in;
}

// The same with the input's own sizes. Unless it is written, it is an expanded single element and
// needs no memory for all of them.
Tensor trueSizedStandInOf(const Tensor& input, bool is_written, int value) {
  if (is_written) {
    return standInOf(input, input.sizes(), value);
  }
  const DimVector ones(input.dim(), 1);
  const Tensor element = standInOf(input, ones, value);
  return input.dim() == 0 ? element : element.expand(input.sizes());
}

bool isInput(const Tensor& output, ArrayRef<const Tensor*> inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const Tensor* input) { return input->is_same(output); });
}

// Runs the kernel on stand-ins. `standIn` makes the tensor for an input; its argument states
// whether the kernel writes it.
template <typename StandIn>
void runOnStandIns(ArrayRef<const Tensor*> operands, size_t output_count,
                   c10::function_ref<void(Tensor*)> kernel, const StandIn& standIn) {
  std::vector<Tensor> stand_ins;
  stand_ins.reserve(operands.size());
  for (size_t index = 0; index < operands.size(); ++index) {
    const Tensor& operand = *operands[index];
    const size_t same = firstSame(operands, index, output_count);
    if (!operand.defined()) {
      stand_ins.emplace_back();
    } else if (same < index) {
      stand_ins.push_back(stand_ins[same]);
    } else if (index >= output_count) {
      stand_ins.push_back(standIn(operand, /*is_written=*/false));
    } else if (isInput(operand, operands.slice(output_count))) {
      stand_ins.push_back(standIn(operand, /*is_written=*/true));
    } else {
      stand_ins.push_back(at::detail::empty_cpu({0}, operand.scalar_type()));
    }
  }
  kernel(stand_ins.data());
}

}  // namespace

void DryRuns::addSizes(ArrayRef<const Tensor*> operands, size_t output_count, ArgumentsKey& key) {
  SmallSizes small;
  for (const Tensor* operand : operands.slice(output_count)) {
    key.add(operand->defined() ? operand->dim() : int64_t(-1));
    if (operand->defined()) {
      for (const int64_t size : operand->sizes()) {
        key.add(small.of(size));
      }
    }
  }
}

void DryRuns::dryRun(ArrayRef<const Tensor*> operands, size_t output_count,
                     c10::function_ref<void(Tensor*)> kernel) {
  const CpuKernelScope scope;
  // Drops the kernel's warnings, which are about zeros.
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  try {
    SmallSizes small;
    runOnStandIns(operands, output_count, kernel, [&](const Tensor& input, bool /*is_written*/) {
      DimVector sizes(input.sizes());
      std::transform(sizes.begin(), sizes.end(), sizes.begin(),
                     [&](int64_t size) { return small.of(size); });
      return standInOf(input, sizes, 0);
    });
    return;
  } catch (const c10::Error&) {
    // Caused by the small sizes, or a real error: the next run decides.
  }
  try {
    runOnStandIns(operands, output_count, kernel, [](const Tensor& input, bool is_written) {
      return trueSizedStandInOf(input, is_written, 0);
    });
    return;
  } catch (const c10::Error&) {
    // Caused by the zeros, or a real error.
  }
  runOnStandIns(operands, output_count, kernel, [](const Tensor& input, bool is_written) {
    return trueSizedStandInOf(input, is_written, 1);
  });
}

}  // namespace at::openreg
