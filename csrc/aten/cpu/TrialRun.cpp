#include "csrc/aten/cpu/TrialRun.h"

#include <ATen/DimVector.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/fill_cpu_dispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "csrc/aten/cpu/DummyLimit.h"
#include "csrc/aten/cpu/ErrorWords.h"
#include "csrc/aten/cpu/KernelWarnings.h"
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

bool isInput(const Tensor& output, ArrayRef<const Tensor*> inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const Tensor* input) { return input->is_same(output); });
}

// Makes the dummies of one run.
class Dummies {
 public:
  Dummies(DummyForm form, int value) : form_(form), value_(value) {}

  Tensor ofInput(const Tensor& input, bool is_written) {
    switch (form_) {
      case DummyForm::SmallSizes: {
        DimVector sizes(input.sizes());
        std::transform(sizes.begin(), sizes.end(), sizes.begin(),
                       [&](int64_t size) { return small_.of(size); });
        return ofSizes(input, sizes);
      }
      case DummyForm::OwnSizes:
        // What is only read needs no memory for all of its elements, but some kernels check less
        // if they are one.
        return is_written || input.dim() == 0 || isRare(input.scalar_type())
                   ? ofSizes(input, input.sizes())
                   : ofSizes(input, DimVector(input.dim(), 1)).expand(input.sizes());
      case DummyForm::OwnMemory:
        return onMemoryLike(input);
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  Tensor ofOutput(const Tensor& output) {
    return form_ == DummyForm::OwnMemory ? onMemoryLike(output) : dummy(output.scalar_type(), {0});
  }

 private:
  Tensor ofSizes(const Tensor& operand, IntArrayRef sizes) const {
    Tensor made = dummy(operand.scalar_type(), sizes, value_);
    if (operand.unsafeGetTensorImpl()->is_wrapped_number()) {
      made.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return made;
  }

  Tensor onMemoryLike(const Tensor& operand) {
    Tensor made = dummy(operand.scalar_type(), {0});
    TensorImpl* impl = made.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(memoryLike(operand.storage(), operand.scalar_type()));
    impl->set_sizes_and_strides(operand.sizes(), operand.strides(), operand.storage_offset());
    impl->_set_conj(operand.is_conj());
    impl->_set_neg(operand.is_neg());
    if (operand.unsafeGetTensorImpl()->is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
    return made;
  }

  // Filled as memory of the dtype.
  Storage memoryLike(const Storage& storage, ScalarType dtype) {
    for (const auto& [known, made] : storages_) {
      if (known.is_alias_of(storage)) {
        return made;
      }
    }
    Storage made(Storage::use_byte_size_t(), storage.nbytes(), c10::GetCPUAllocator(),
                 /*resizable=*/true);
    if (made.nbytes() > 0) {
      std::memset(made.mutable_data(), 0, made.nbytes());
    }
    if (value_ != 0) {
      Tensor all = dummy(dtype, {0});
      TensorImpl* impl = all.unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(made);
      impl->set_sizes_contiguous({static_cast<int64_t>(made.nbytes() / all.itemsize())});
      at::cpu::fill_(all, value_);
    }
    storages_.emplace_back(storage, made);
    return made;
  }

  const DummyForm form_;
  const int value_;
  SmallSizes small_;
  std::vector<std::pair<Storage, Storage>> storages_;  // of the operands, of their dummies
};

}  // namespace

Tensor dummy(ScalarType dtype, IntArrayRef sizes, int value) {
  Tensor made = at::detail::empty_cpu(sizes, dtype);
  if (made.nbytes() > 0) {
    std::memset(made.mutable_data_ptr(), 0, made.nbytes());
  }
  if (value != 0) {
    try {
      at::cpu::fill_(made, value);
    } catch (const c10::NotImplementedError&) {
    }
  }
  return made;
}

void trialRun(ArrayRef<const Tensor*> operands, size_t output_count, DummyForm form, int value,
              c10::function_ref<void(Tensor*)> kernel) {
  const CpuKernelScope scope;
  Dummies dummies(form, value);
  std::vector<Tensor> tensors;
  tensors.reserve(operands.size());
  for (size_t index = 0; index < operands.size(); ++index) {
    const Tensor& operand = *operands[index];
    const size_t same = firstSame(operands, index, output_count);
    if (!operand.defined()) {
      tensors.emplace_back();
    } else if (same < index) {
      tensors.push_back(tensors[same]);
    } else if (index >= output_count) {
      tensors.push_back(dummies.ofInput(operand, /*is_written=*/false));
    } else if (isInput(operand, operands.slice(output_count))) {
      tensors.push_back(dummies.ofInput(operand, /*is_written=*/true));
    } else {
      tensors.push_back(dummies.ofOutput(operand));
    }
  }
  kernel(tensors.data());
}

void CheckedDtypes::runOnDummies(ScalarType dtype, c10::function_ref<void()> run) {
  const CpuKernelScope scope;
  const WarningRecorder dropped(WarningRecorder::Mode::Record);
  inOwnWords(run);
  known_.fetch_or(uint64_t(1) << static_cast<int>(dtype), std::memory_order_relaxed);
}

void TrialRuns::addSizes(ArrayRef<const Tensor*> operands, size_t output_count, ArgumentsKey& key,
                         bool is_rare) {
  SmallSizes small;
  for (const Tensor* operand : operands.slice(output_count)) {
    key.add(operand->defined() ? operand->dim() : int64_t(-1));
    if (operand->defined()) {
      for (const int64_t size : operand->sizes()) {
        key.add(is_rare ? size : small.of(size));
      }
    }
  }
}

namespace {

struct Run {
  DummyForm form;
  int value;
};

// An exception of the runs before the last one is caused by the small sizes or the zeros, or is a
// real error: the last run decides.
void runUntilOneSucceeds(ArrayRef<Run> runs, ArrayRef<const Tensor*> operands, size_t output_count,
                         c10::function_ref<void(Tensor*)> kernel) {
  for (const Run& run : runs.slice(0, runs.size() - 1)) {
    try {
      trialRun(operands, output_count, run.form, run.value, kernel);
      return;
    } catch (const c10::Error&) {
    }
  }
  inOwnWords(
      [&] { trialRun(operands, output_count, runs.back().form, runs.back().value, kernel); });
}

// Of all operands together.
int64_t elementsOf(ArrayRef<const Tensor*> operands) {
  int64_t elements = 0;
  for (const Tensor* operand : operands) {
    elements += operand->defined() ? operand->numel() : 0;
  }
  return elements;
}

// Whether the operands are small enough to run on dummies of their own sizes first.
bool areSmall(ArrayRef<const Tensor*> operands) {
  constexpr int64_t kMaxElements = int64_t{1} << 16;
  return elementsOf(operands) <= kMaxElements;
}

std::atomic<int64_t> largest_dummies{std::numeric_limits<int64_t>::max()};

}  // namespace

void limitDummies(int64_t elements) { largest_dummies = elements; }

bool TrialRuns::run(ArrayRef<const Tensor*> operands, size_t output_count, bool is_rare,
                    bool takes_zeros, c10::function_ref<void(Tensor*)> kernel) {
  if (C10_UNLIKELY(elementsOf(operands) > largest_dummies.load(std::memory_order_relaxed))) {
    return false;
  }
  constexpr std::array<Run, 3> kRuns{Run{DummyForm::SmallSizes, 0}, Run{DummyForm::OwnSizes, 0},
                                     Run{DummyForm::OwnSizes, 1}};
  constexpr std::array<Run, 2> kOnOnes{Run{DummyForm::SmallSizes, 1}, Run{DummyForm::OwnSizes, 1}};
  ArrayRef<Run> runs = takes_zeros ? ArrayRef<Run>(kRuns) : ArrayRef<Run>(kOnOnes);
  if (is_rare && areSmall(operands)) {
    runs = runs.slice(1);
  }
  std::vector<c10::Warning> warnings;
  {
    WarningRecorder recorder(WarningRecorder::Mode::Record);
    runUntilOneSucceeds(runs, operands, output_count, kernel);
    warnings = recorder.take();
  }
  for (const c10::Warning& warning : warnings) {
    c10::warn(warning);
  }
  return warnings.empty();
}

}  // namespace at::openreg
