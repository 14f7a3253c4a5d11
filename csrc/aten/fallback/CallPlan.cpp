#include "csrc/aten/fallback/CallPlan.h"

#include <ATen/MemoryOverlap.h>
#include <c10/util/strides.h>

#include <algorithm>

#include "csrc/aten/launch/EmptyTensor.h"
#include "csrc/aten/launch/FirstPlaces.h"
#include "csrc/aten/layouts/Components.h"

namespace at::openreg {

PlannedTensor PlannedTensor::likeNew(const TensorBase& tensor) {
  const bool overlaps = at::has_internal_overlap(tensor) == at::MemOverlap::Yes;
  return {
      .kind = Kind::New,
      .dtype = tensor.scalar_type(),
      .is_conj = tensor.is_conj(),
      .is_neg = tensor.is_neg(),
      .sizes = DimVector(tensor.sizes()),
      .strides = overlaps ? c10::contiguous_strides(tensor.sizes()) : DimVector(tensor.strides())};
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

namespace {

// Plans what a kernel returned.
class ResultPlanner {
 public:
  ResultPlanner(c10::ArrayRef<Tensor> aliases, c10::DeviceType device) : device_(device) {
    for (size_t i = 0; i < aliases.size(); ++i) {
      places_.findOrAdd(aliases[i].unsafeGetTensorImpl(), i);
      storages_.findOrAdd(identityOf(aliases[i].storage()), i);
    }
  }

  PlannedTensor plan(const Tensor& result) {
    if (!result.defined()) {
      return PlannedTensor::undefined();
    }
    if (const auto place = places_.find(result.unsafeGetTensorImpl())) {
      return PlannedTensor::argument(*place);
    }
    are_plannable_ = are_plannable_ && isPlain(result) && result.device().type() == device_ &&
                     !storages_.find(identityOf(result.storage())).has_value();
    return are_plannable_ ? PlannedTensor::likeNew(result) : PlannedTensor();
  }

  PlannedResult plan(const c10::IValue& result) {
    PlannedResult planned{.is_list = result.isTensorList(), .tensors = {}};
    if (planned.is_list) {
      for (const c10::IValue& element : result.toListRef()) {
        planned.tensors.push_back(plan(element.toTensor()));
      }
    } else {
      planned.tensors.push_back(plan(result.toTensor()));
    }
    return planned;
  }

  // Whether all results so far are arguments or new strided tensors.
  bool arePlannable() const { return are_plannable_; }

 private:
  FirstPlaces<const TensorImpl*> places_;
  FirstPlaces<const void*> storages_;
  const c10::DeviceType device_;
  bool are_plannable_ = true;
};

bool isResized(const Tensor& original, const Tensor& alias) {
  return alias.sizes() != original.sizes() || alias.strides() != original.strides() ||
         alias.storage().nbytes() != original.storage().nbytes();
}

}  // namespace

std::shared_ptr<CallPlan> planOf(c10::ArrayRef<Tensor> originals, c10::ArrayRef<Tensor> aliases,
                                 c10::ArrayRef<c10::IValue> results, c10::DeviceType device) {
  auto plan = std::make_shared<CallPlan>();
  ResultPlanner planner(aliases, device);
  for (const c10::IValue& result : results) {
    plan->results.push_back(planner.plan(result));
  }
  bool keeps_elements = true;
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (isResized(originals[i], aliases[i])) {
      keeps_elements = keeps_elements && originals[i].numel() == 0;
      plan->resizes.push_back({i, DimVector(aliases[i].sizes()), DimVector(aliases[i].strides())});
    }
  }
  if (!keeps_elements || !planner.arePlannable()) {
    plan->kind = CallPlan::Kind::OnHost;
  }
  return plan;
}

}  // namespace at::openreg
