#include "csrc/aten/structured/StructuredLaunch.h"

#include <c10/core/TensorImpl.h>

namespace at::openreg {

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

const Tensor* detail::operandOf(const std::optional<Tensor>& tensor) {
  static const Tensor undefined;
  return tensor.has_value() ? &*tensor : &undefined;
}

}  // namespace at::openreg
