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

// Sizes of dummies: small sizes are kept; larger ones are reduced such that equal sizes stay
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
Tensor dummyOf(const Tensor& input, IntArrayRef sizes, int value) {
  Tensor dummy = at::detail::empty_cpu(sizes, input.scalar_type());
  if (value == 0) {
    std::memset(dummy.mutable_data_ptr(), 0, dummy.nbytes());
  } else {
    at::cpu::fill_(dummy, value);
  }
  if (input.unsafeGetTensorImpl()->is_wrapped_number()) {
    dummy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return dummy;
}

// The same with the input's own sizes. Unless it is written, it is an expanded single element and
// needs no memory for all of them.
Tensor trueSizedDummyOf(const Tensor& input, bool is_written, int value) {
  if (is_written) {
    return dummyOf(input, input.sizes(), value);
  }
  const DimVector ones(input.dim(), 1);
  const Tensor element = dummyOf(input, ones, value);
  return input.dim() == 0 ? element : element.expand(input.sizes());
}

bool isInput(const Tensor& output, ArrayRef<const Tensor*> inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const Tensor* input) { return input->is_same(output); });
}

// Runs the kernel on dummies. `makeDummy` makes the tensor for an input; its argument states
// whether the kernel writes it.
template <typename MakeDummy>
void runOnDummies(ArrayRef<const Tensor*> operands, size_t output_count,
                  c10::function_ref<void(Tensor*)> kernel, const MakeDummy& makeDummy) {
  std::vector<Tensor> dummies;
  dummies.reserve(operands.size());
  for (size_t index = 0; index < operands.size(); ++index) {
    const Tensor& operand = *operands[index];
    const size_t same = firstSame(operands, index, output_count);
    if (!operand.defined()) {
      dummies.emplace_back();
    } else if (same < index) {
      dummies.push_back(dummies[same]);
    } else if (index >= output_count) {
      dummies.push_back(makeDummy(operand, /*is_written=*/false));
    } else if (isInput(operand, operands.slice(output_count))) {
      dummies.push_back(makeDummy(operand, /*is_written=*/true));
    } else {
      dummies.push_back(at::detail::empty_cpu({0}, operand.scalar_type()));
    }
  }
  kernel(dummies.data());
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
    runOnDummies(operands, output_count, kernel, [&](const Tensor& input, bool /*is_written*/) {
      DimVector sizes(input.sizes());
      std::transform(sizes.begin(), sizes.end(), sizes.begin(),
                     [&](int64_t size) { return small.of(size); });
      return dummyOf(input, sizes, 0);
    });
    return;
  } catch (const c10::Error&) {
    // Caused by the small sizes, or a real error: the next run decides.
  }
  try {
    runOnDummies(operands, output_count, kernel, [](const Tensor& input, bool is_written) {
      return trueSizedDummyOf(input, is_written, 0);
    });
    return;
  } catch (const c10::Error&) {
    // Caused by the zeros, or a real error.
  }
  runOnDummies(operands, output_count, kernel, [](const Tensor& input, bool is_written) {
    return trueSizedDummyOf(input, is_written, 1);
  });
}

}  // namespace at::openreg
