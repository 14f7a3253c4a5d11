#include "csrc/aten/cpu/DryRun.h"

#include <ATen/DimVector.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/fill_cpu_dispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>
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
        // What is only read needs no memory for all of its elements.
        return is_written || input.dim() == 0
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
  if (value != 0) {
    at::cpu::fill_(made, value);
  } else if (made.nbytes() > 0) {
    std::memset(made.mutable_data_ptr(), 0, made.nbytes());
  }
  return made;
}

void dryRun(ArrayRef<const Tensor*> operands, size_t output_count, DummyForm form, int value,
            c10::function_ref<void(Tensor*)> kernel) {
  const CpuKernelScope scope;
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
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

void DryRuns::run(ArrayRef<const Tensor*> operands, size_t output_count,
                  c10::function_ref<void(Tensor*)> kernel) {
  // An exception of these runs is caused by the small sizes or the zeros, or is a real error: the
  // last run decides.
  for (const DummyForm form : {DummyForm::SmallSizes, DummyForm::OwnSizes}) {
    try {
      dryRun(operands, output_count, form, 0, kernel);
      return;
    } catch (const c10::Error&) {
    }
  }
  dryRun(operands, output_count, DummyForm::OwnSizes, 1, kernel);
}

}  // namespace at::openreg
