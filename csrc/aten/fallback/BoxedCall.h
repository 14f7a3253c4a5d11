// One call of the fallback: all that is read of its arguments.
//
// Note [One pass over the arguments]
// The constructor walks the arguments on the stack once. It finds the device, notes whether there
// are tensors on others, collects the different tensors, and describes the call for its plan. What
// follows, on the stream or on the calling thread, loops over the collected tensors: each is
// converted once, however often it is passed, so that the kernel can compare tensors for identity.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

#include "csrc/aten/fallback/CallSignature.h"
#include "csrc/aten/fallback/CallValues.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "csrc/aten/launch/FirstPlaces.h"

namespace at::openreg {

// Refers to the arguments on the stack, which must outlive it unchanged.
class BoxedCall {
 public:
  BoxedCall(FallbackOperator& known, const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  BoxedCall(const BoxedCall&) = delete;
  BoxedCall& operator=(const BoxedCall&) = delete;

  FallbackOperator& known() const { return known_; }
  const c10::OperatorHandle& op() const { return op_; }
  const c10::FunctionSchema& schema() const { return op_.schema(); }

  // That of the tensors, else that of a device argument, else the current one.
  c10::Device device() const { return device_; }

  // Whether there are tensors that are not on device().
  bool isMixed() const { return is_mixed_; }

  // Throws unless the operator takes these tensors, as on CUDA; see Note [CPU tensors in a call].
  void checkDevices(c10::DispatchKey functionality) const;

  // Null if the results of the call cannot be planned.
  const CallSignature* signature() const { return signature_; }

  // Whether CUDA's kernel of the call makes the host wait, too.
  bool waitsOnCuda() const;

  const c10::IValue& argument(size_t index) const { return arguments_[index]; }

  // The different tensors in the order in which they first appear: all, some of which may be
  // undefined or on the CPU, and those on the device.
  c10::ArrayRef<const Tensor*> tensors() const { return tensors_; }
  c10::ArrayRef<const Tensor*> deviceTensors() const { return device_tensors_; }

  // The arguments for the CPU's kernel: openreg devices are replaced by the CPU. For places(), see
  // argumentsOf(); they are indexes of tensors().
  c10::SmallVectorImpl<CallValue>& values() { return values_; }
  c10::ArrayRef<size_t> places() const { return places_; }

  // Replaces random number generators: `engine_for` maps a std::optional<Generator> to another one.
  template <typename EngineFor>
  void replaceGenerators(const EngineFor& engine_for) {
    for (const size_t index : generators_) {
      c10::IValue& value = values_[index].plain;
      value = engine_for(value.toOptional<Generator>());
    }
  }

  // Calls `visit` with each tensor and its argument, as often as it is passed.
  template <typename Visit>
  void visitTensors(const Visit& visit) const {
    size_t next = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      for (const size_t place : places().slice(next, values_[i].count)) {
        if (place != kNoTensor) {
          visit(*tensors_[place], schema().arguments()[i]);
        }
      }
      next += values_[i].count;
    }
  }

 private:
  struct Collector;

  FallbackOperator& known_;
  const c10::OperatorHandle& op_;
  const c10::ArrayRef<c10::IValue> arguments_;
  c10::Device device_;
  c10::SmallVector<CallValue, 16> values_;
  c10::SmallVector<size_t, 8> places_;
  c10::SmallVector<size_t, 1> generators_;  // indexes in `values_`
  c10::SmallVector<const Tensor*, 8> tensors_;
  c10::SmallVector<const Tensor*, 8> device_tensors_;
  FirstPlaces<const TensorImpl*> first_places_;  // in `tensors_`; see Note [Long lists]
  CallSignature::Builder description_;
  const CallSignature* signature_ = nullptr;
  bool is_mixed_ = false;
};

}  // namespace at::openreg
