#include "csrc/aten/structured/Trial.h"

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

// Large enough for the windows of pooling kernels, small enough to cost nothing in five dimensions.
constexpr int64_t kMaxKeptSize = 8;

// Sizes of stand-ins: small ones are kept, and of larger ones those that are equal stay equal and
// those that differ go on to differ.
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

// Of elements that all are `value`. Zeros are valid indices, ones are valid divisors.
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

// The same of the input's own sizes, without memory for all elements: one stands for the others,
// unless the kernel writes them.
Tensor trueSizedStandInOf(const Tensor& input, int value, bool is_written) {
  if (is_written) {
    return standInOf(input, input.sizes(), value);
  }
  const DimVector ones(input.dim(), 1);
  const Tensor element = standInOf(input, ones, value);
  return input.dim() == 0 ? element : element.expand(input.sizes());
}

// Runs the kernel; `standIn(input, is_written)` makes the tensors for its inputs. An input that is
// an output stays that output.
template <typename StandIn>
void runOnStandIns(ArrayRef<const Tensor*> operands, size_t output_count,
                   c10::function_ref<void(Tensor*)> kernel, const StandIn& standIn) {
  std::vector<Tensor> stand_ins(operands.size());
  for (size_t output = 0; output < output_count; ++output) {
    if (operands[output]->defined()) {
      stand_ins[output] = at::detail::empty_cpu({0}, operands[output]->scalar_type());
    }
  }
  for (size_t input = output_count; input < operands.size(); ++input) {
    if (!operands[input]->defined()) {
      continue;
    }
    const auto outputs = operands.slice(0, output_count);
    const auto* same = std::find_if(outputs.begin(), outputs.end(), [&](const Tensor* output) {
      return output->is_same(*operands[input]);
    });
    const bool is_written = same != outputs.end();
    stand_ins[input] = standIn(*operands[input], is_written);
    if (is_written) {
      stand_ins[same - outputs.begin()] = stand_ins[input];
    }
  }
  kernel(stand_ins.data());
}

}  // namespace

void Trials::addSizes(ArrayRef<const Tensor*> operands, size_t output_count, ArgumentsKey& key) {
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

void Trials::tryOut(ArrayRef<const Tensor*> operands, size_t output_count,
                    c10::function_ref<void(Tensor*)> kernel) {
  const CpuKernelScope scope;
  // What a kernel warns of zeros nobody needs to know.
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  try {
    SmallSizes small;
    runOnStandIns(operands, output_count, kernel, [&](const Tensor& input, bool) {
      DimVector sizes(input.sizes());
      std::transform(sizes.begin(), sizes.end(), sizes.begin(),
                     [&](int64_t size) { return small.of(size); });
      return standInOf(input, sizes, 0);
    });
    return;
  } catch (const c10::Error&) {
    // Because of the small sizes, or rightly: the next trial tells.
  }
  try {
    runOnStandIns(operands, output_count, kernel,
                  [](const Tensor& input, bool is_written) {
                    return trueSizedStandInOf(input, 0, is_written);
                  });
    return;
  } catch (const c10::Error&) {
    // Because of the zeros, or rightly.
  }
  runOnStandIns(operands, output_count, kernel,
                [](const Tensor& input, bool is_written) {
                  return trueSizedStandInOf(input, 1, is_written);
                });
}

}  // namespace at::openreg
