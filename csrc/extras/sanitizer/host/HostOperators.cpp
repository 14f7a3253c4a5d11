#include "csrc/extras/sanitizer/host/HostOperators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "build/generated/facts/OneKernelForAll.h"
#include "build/generated/facts/OnlyMetadata.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "csrc/core/Mutex.h"
#include "csrc/extras/sanitizer/Sanitizer.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {
namespace {

namespace facts = c10::openreg::facts;
using c10::openreg::Lock;
using c10::openreg::Operand;

constinit c10::openreg::Mutex callback_mutex;
constinit std::optional<at::CallbackHandle> callback OPENREG_GUARDED_BY(callback_mutex);

// Whether calls of the operator access memory themselves: views do not, and composite operators
// leave it to the operators that they call.
bool touchesMemory(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const bool is_of_cpu = op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                         facts::kOneKernelForAll.contains(schema.name());
  return is_of_cpu && !facts::kOnlyMetadata.contains(schema.name()) &&
         std::none_of(schema.returns().begin(), schema.returns().end(), &isViewed);
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  // In a forked child the callback is left, and another thread may have held the sanitizer's lock.
  if (!c10::openreg::isSanitizerOn()) {
    return nullptr;
  }
  const auto name = function.operator_name();
  if (!name.has_value()) {
    return nullptr;
  }
  const auto op = c10::Dispatcher::singleton().findOp(*name);
  const auto inputs = function.inputs();
  if (!op.has_value() || !op->hasSchema() || inputs.size() != op->schema().arguments().size()) {
    return nullptr;
  }
  c10::SmallVector<Operand, 8> operands;
  bool is_of_device = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const c10::Argument& argument = op->schema().arguments()[i];
    visitTensors(inputs[i], [&](const Tensor& tensor) {
      is_of_device = is_of_device || isOpenReg(tensor);
      if (tensor.defined() && tensor.is_cpu() && tensor.layout() == kStrided) {
        operands.push_back({tensor.unsafeGetTensorImpl(), isWritten(argument),
                            argument.name().c_str(),
                            /*is_host_memory=*/true});
      }
    });
  }
  if (!is_of_device && !operands.empty() && touchesMemory(*op)) {
    c10::openreg::recordHostAccesses(op->schema().name().c_str(), operands);
  }
  return nullptr;
}

}  // namespace

void observeHostOperators() {
  const Lock lock(callback_mutex);
  if (!callback.has_value()) {
    callback = at::addGlobalCallback(
        at::RecordFunctionCallback(&enter).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
}

void stopObservingHostOperators() {
  const Lock lock(callback_mutex);
  if (callback.has_value()) {
    at::removeCallback(*callback);
    callback.reset();
  }
}

}  // namespace at::openreg
