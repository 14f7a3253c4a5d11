#include "csrc/aten/fallback/CallAccesses.h"

#include <c10/util/SmallVector.h>

#include "build/generated/facts/WrittenUnmarked.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "csrc/aten/launch/FirstPlaces.h"
#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {
namespace {

namespace facts = c10::openreg::facts;
using c10::openreg::Operand;
using c10::openreg::Verdict;

class CallOperands {
 public:
  void add(const Tensor& tensor, bool is_written, const char* name, bool is_updated = false) {
    if (!isOpenReg(tensor)) {
      return;
    }
    if (isPlain(tensor)) {
      addPlain(
          {tensor.unsafeGetTensorImpl(), is_written, name, /*is_host_memory=*/false, is_updated},
          tensor);
      return;
    }
    for (const Tensor& component : componentsOf(tensor)) {
      add(component, is_written, name, is_updated);
    }
  }

  c10::ArrayRef<Operand> all() const { return all_; }

 private:
  void addPlain(const Operand& operand, const Tensor& tensor) {
    const size_t place = places_.findOrAdd(operand.tensor, all_.size());
    if (place == all_.size()) {
      kept_.push_back(tensor);
      all_.push_back(operand);
    } else if (operand.is_written && operand.name != nullptr) {
      Operand& known = all_[place];
      known.is_updated = known.is_updated || operand.is_updated || !known.is_written;
      known.is_written = true;
      known.name = operand.name;
    }
  }

  c10::SmallVector<Operand, 8> all_;
  FirstPlaces<const TensorImpl*> places_;  // in `all_`; see Note [Long lists]
  c10::SmallVector<Tensor, 8> kept_;       // components are temporaries
};

// Whether the call writes an argument that the schema does not mark as written; `conditions` may be
// null.
bool isWrittenUnmarked(const facts::Conditions* conditions, const BoxedCall& call,
                       const c10::Argument& argument) {
  const auto* const condition = conditions == nullptr ? nullptr : conditions->find(argument.name());
  if (condition == nullptr) {
    return false;
  }
  const auto index = call.schema().argumentIndexWithName(condition->if_true);
  TORCH_INTERNAL_ASSERT(index.has_value(), call.schema().name(), " has no argument ",
                        condition->if_true);
  return call.argument(*index).toBool();
}

}  // namespace

Verdict observeCall(const BoxedCall& call, c10::ArrayRef<c10::IValue> results) {
  if (!c10::openreg::isObserved()) {
    return Verdict::Run;
  }
  CallOperands operands;
  const facts::Conditions* const conditions = facts::kWrittenUnmarked.find(call.schema().name());
  call.visitTensors([&](const Tensor& tensor, const c10::Argument& argument) {
    const bool is_updated = isWrittenUnmarked(conditions, call, argument);
    operands.add(tensor, is_updated || isWritten(argument), argument.name().c_str(), is_updated);
  });
  // Results that are arguments have been added before, as read or written.
  for (const c10::IValue& result : results) {
    visitTensors(result, [&](const Tensor& tensor) {
      operands.add(tensor, /*is_written=*/true, /*name=*/nullptr);
    });
  }
  return c10::openreg::observe(&c10::openreg::Observer::kernelAccess,
                               c10::openreg::getCurrentOpenRegStream(call.device().index()),
                               call.known().name().c_str(), operands.all(), /*schema_only=*/true);
}

Verdict observeResult(const FallbackOperator& known, c10::Device device, const Tensor& result) {
  if (!c10::openreg::isObserved()) {
    return Verdict::Run;
  }
  const Storage& storage = result.storage();
  return c10::openreg::observe(
      &c10::openreg::Observer::rangeAccess, c10::openreg::getCurrentOpenRegStream(device.index()),
      known.name().c_str(),
      c10::openreg::Range{storage.data(), storage.nbytes(), c10::openreg::RangeAccess::Written});
}

}  // namespace at::openreg
