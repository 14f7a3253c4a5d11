#include "csrc/aten/fallback/CallPlan.h"

#include <algorithm>

#include "csrc/aten/launch/EmptyTensor.h"

namespace at::openreg {

PlannedTensor PlannedTensor::likeNew(const TensorBase& tensor) {
  return {.kind = Kind::New,
          .dtype = tensor.scalar_type(),
          .is_conj = tensor.is_conj(),
          .is_neg = tensor.is_neg(),
          .sizes = DimVector(tensor.sizes()),
          .strides = DimVector(tensor.strides())};
}

Tensor PlannedTensor::allocate() const {
  Tensor tensor = emptyStridedOnCurrentDevice(sizes, strides, dtype);
  TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(is_conj || is_neg)) {
    impl->_set_conj(is_conj);
    impl->_set_neg(is_neg);
  }
  return tensor;
}

bool PlannedTensor::describes(const TensorBase& result) const {
  return result.defined() && result.sizes() == IntArrayRef(sizes) && result.scalar_type() == dtype;
}

bool CallPlan::areAllNew() const {
  return std::all_of(results.begin(), results.end(), [](const PlannedResult& result) {
    if (result.is_list) {
      return false;
    }
    const PlannedTensor& planned = result.tensors.front();
    return planned.kind == PlannedTensor::Kind::New && !planned.is_conj && !planned.is_neg;
  });
}

}  // namespace at::openreg
