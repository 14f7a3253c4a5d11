#include "csrc/aten/structured/StructuredLaunch.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/TensorImpl.h>

#include "csrc/aten/cpu/KernelWarnings.h"

namespace at::openreg {
namespace {

// Note [Outputs that overlap]
// Most kernels refuse an output that overlaps itself, such as an expanded tensor, or that overlaps
// an input; some do not. A TensorIterator refuses it in the shape function; other kernels do so
// when they run, which is too late for the caller. Overlap is rare, so in that case the kernel
// first runs on the calling thread, on CPU tensors with the operands' sizes that are all zeros and
// overlap as the operands do. The call rethrows its exception.
bool overlaps(ArrayRef<const Tensor*> operands, size_t output_count) {
  for (const Tensor* output : operands.slice(0, output_count)) {
    if (!output->defined()) {
      continue;
    }
    if (at::has_internal_overlap(*output) == MemOverlap::Yes) {
      return true;
    }
    for (const Tensor* input : operands.slice(output_count)) {
      if (input->defined() && !input->is_same(*output) && input->has_storage() &&
          input->storage().is_alias_of(output->storage()) &&
          at::get_overlap_status(*output, *input) != MemOverlapStatus::No) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

void detail::ConjugateBits::restoreChanged(const Tensor* outputs, size_t count) const {
  for (size_t index = 0; index < count; ++index) {
    TensorImpl* impl = outputs[index].unsafeGetTensorImpl();
    const bool was_conjugate = (bits_ >> index) & 1;
    if (impl->is_conj() != was_conjugate) {
      impl->_set_conj(false);
      outputs[index].conj_physical_();
      impl->_set_conj(was_conjugate);
    }
  }
}

void detail::addOutputsAndInputs(c10::openreg::OperandList& list, ArrayRef<const Tensor*> operands,
                                 size_t output_count) {
  for (size_t index = 0; index < operands.size(); ++index) {
    list.push_back({operands[index]->unsafeGetTensorImpl(), index < output_count});
  }
}

void detail::checkBeforeLaunch(ArrayRef<const Tensor*> operands, size_t output_count,
                               bool are_sizes_checked, LaunchMode mode, ArgumentsKey key,
                               TrialRuns& trial_runs, c10::function_ref<void(Tensor*)> kernel) {
  // A TensorIterator has already checked for overlap.
  if (!are_sizes_checked && mode != LaunchMode::OnCallingThread &&
      C10_UNLIKELY(overlaps(operands, output_count))) {
    TORCH_CHECK(mode == LaunchMode::AfterTrialRun,
                "out=: expected a tensor without internal overlap that overlaps no input, got one "
                "that overlaps itself, such as an expanded one, or an input; clone it first");
    const WarningRecorder dropped(WarningRecorder::Mode::Record);
    trialRun(operands, output_count, DummyForm::OwnMemory, /*value=*/0, kernel);
  }
  if (mode == LaunchMode::AfterTrialRun || mode == LaunchMode::AfterRunOfOnes) {
    trial_runs.check(operands, output_count, key, are_sizes_checked,
                     /*takes_zeros=*/mode == LaunchMode::AfterTrialRun, kernel);
  }
}

const Tensor* detail::operandOf(const std::optional<Tensor>& tensor) {
  static const Tensor undefined;
  return tensor.has_value() ? &*tensor : &undefined;
}

}  // namespace at::openreg
