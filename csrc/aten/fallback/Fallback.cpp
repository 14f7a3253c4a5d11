#include "csrc/aten/fallback/Fallback.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/aten/dtypes/WiderTypes.h"
#include "csrc/aten/fallback/BoxedCall.h"
#include "csrc/aten/fallback/CallAccesses.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "csrc/aten/fallback/HostCall.h"
#include "csrc/aten/fallback/PlanStore.h"
#include "csrc/aten/fallback/Prediction.h"
#include "csrc/aten/fallback/StreamCall.h"
#include "csrc/aten/fallback/Verification.h"
#include "csrc/aten/refusals/Refusals.h"
#include "csrc/memory/StorageResize.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {
namespace {

// Why a call cannot be captured in a graph.
constexpr const char* kFirstCall =
    ", whose first call with such arguments runs on the host: make it once before the capture";
constexpr const char* kHostCall = ", which runs on the host";

void warn(const std::vector<c10::Warning>& warnings) {
  for (const c10::Warning& warning : warnings) {
    c10::warn(warning);
  }
}

// The dispatch key of the corresponding CPU kernel.
c10::DispatchKey cpuKey(c10::DispatchKeySet keys) {
  return c10::toRuntimePerBackendFunctionalityKey(functionalityOf(keys),
                                                  c10::BackendComponent::CPUBit);
}

void resizeArguments(c10::ArrayRef<const Tensor*> tensors,
                     const std::vector<PlannedResize>& resizes) {
  for (const PlannedResize& resize : resizes) {
    const Tensor& tensor = *tensors[resize.argument_index];
    const size_t nbytes = at::detail::computeStorageNbytes(
        resize.sizes, resize.strides, tensor.itemsize(), tensor.storage_offset());
    if (nbytes > tensor.storage().nbytes()) {
      c10::openreg::resizeStorage(tensor.storage(), nbytes);
    }
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(resize.sizes, resize.strides);
  }
}

// Enqueues the CPU kernel on the current stream, and replaces the arguments on the stack by the
// results. The kernel of a call that `is_skipped` is given no arguments.
// Errors: c10::OutOfMemoryError; the arguments are then unchanged.
void callOnStream(BoxedCall& call, std::shared_ptr<const CallPlan> plan, torch::jit::Stack* stack,
                  bool is_skipped = false) {
  resizeArguments(call.deviceTensors(), plan->resizes);
  call.replaceGenerators([&](const std::optional<Generator>& generator) {
    return engineForLaunch(generator, call.device().index());
  });
  const bool is_verified = isVerifying() && plan->areAllNew() && !call.known().drawsNumbers();
  StreamCallClosure run;
  if (is_skipped) {
    c10::SmallVector<CallValue, 1> none;
    run.call().setArguments(call.op(), std::move(plan), none, {}, {}, is_verified,
                            call.known().copiedBytes());
  } else {
    run.call().setArguments(call.op(), std::move(plan), call.values(), call.places(),
                            call.tensors(), is_verified, call.known().copiedBytes());
  }
  torch::jit::Stack results = run.call().allocateResults(call.deviceTensors());
  const Verdict verdict = observeCall(call, results);
  launchOp(call.known().kernel(), call.device(), std::move(run), verdict);
  torch::jit::drop(*stack, call.schema().arguments().size());
  stack->insert(stack->end(), std::make_move_iterator(results.begin()),
                std::make_move_iterator(results.end()));
}

// A call that the calling thread would make and that observers skip.
void skipOnHost(BoxedCall& call, torch::jit::Stack* stack) {
  if (call.waitsOnCuda()) {
    waitForCurrentStream(call.device(), call.known().name().c_str());
  }
  if (!composeSkipped(call, stack)) {
    callOnStream(call, planSkipped(call), stack, /*is_skipped=*/true);
  }
}

}  // namespace

// docs: fallback-call
void runFallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  FallbackOperator& known = fallbackOperator(op);
  if (const DtypeSet dtypes = known.dtypesToWiden(keys);
      C10_UNLIKELY(dtypes != 0) && computesIn(dtypes, op, *stack)) {
    runWider(op, keys, stack);
    return;
  }
  if (C10_UNLIKELY(!known.refusals().areEmpty()) && functionalityOf(keys) == DispatchKey::Dense) {
    refuse(known.refusals(), op, *stack);
  }
  BoxedCall call(known, op, *stack);
  if (C10_UNLIKELY(call.isMixed())) {
    const c10::DispatchKey functionality = functionalityOf(keys);
    const auto composition = known.cudaKernel().composition;
    if (composition.has_value() && functionality == c10::DispatchKey::Dense) {
      op.callBoxedForDispatchKey(*composition, *stack);
      return;
    }
    call.checkDevices(functionality);
  }
  const c10::DeviceGuard guard(call.device());
  const CallSignature* signature = call.signature();
  auto plan = signature != nullptr ? findPlan(*signature) : nullptr;
  if (plan != nullptr && plan->kind == CallPlan::Kind::OnStream && plan->isValid()) {
    known.countAsynchronousCall();
    warn(plan->warnings);
    callOnStream(call, std::move(plan), stack);
    return;
  }
  // Predictions are those of the kernels for dense tensors.
  if (signature != nullptr && plan == nullptr && cpuKey(keys) == c10::DispatchKey::CPU) {
    Prediction predicted = predictPlan(call);
    if (predicted.plan != nullptr) {
      keepPlan(*signature, predicted.plan);
      known.countAsynchronousCall();
      warn(predicted.warnings);
      callOnStream(call, std::move(predicted.plan), stack);
      return;
    }
  }
  const bool is_learning =
      signature != nullptr && (plan == nullptr || plan->kind != CallPlan::Kind::OnHost);
  if (const auto stream = c10::openreg::getCurrentOpenRegStream(call.device().index());
      stream.isCapturing()) {
    checkNotCapturing(stream, (known.name() + (is_learning ? kFirstCall : kHostCall)).c_str());
  }
  known.countSynchronousCall();
  if (C10_UNLIKELY(observeCall(call, {}) == Verdict::Skip)) {
    skipOnHost(call, stack);
    return;
  }
  HostCall on_host(call, cpuKey(keys), stack);
  if (!is_learning) {
    on_host.run();
    return;
  }
  keepPlan(*signature, on_host.runAndLearn(/*has_warned_before=*/plan != nullptr));
}
// docs: end

OPENREG_LIBRARY_IMPL(_, Dense, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&runFallback>());
}

}  // namespace at::openreg
