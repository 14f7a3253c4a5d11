#include "csrc/aten/fallback/BoxedCall.h"

#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"

namespace at::openreg {
using c10::openreg::kDeviceType;

// The pass over the arguments: add() is called with one after the other.
struct BoxedCall::Collector {
  BoxedCall& call;
  std::optional<c10::Device> of_tensors = std::nullopt;
  std::optional<c10::Device> of_argument = std::nullopt;

  void add(const c10::IValue& value, const c10::Argument& of) {
    if (value.isTensor()) {
      addTensor(value.toTensor());
    } else if (value.isTensorList()) {
      addList(value.toListRef(), CallValue::Kind::TensorList);
    } else if (value.isOptionalTensorList()) {
      addList(value.toListRef(), CallValue::Kind::OptionalTensorList);
    } else if (value.isDevice() && value.toDevice().type() == kDeviceType) {
      call.description_.addDevice(value.toDevice());
      of_argument =
          c10::Device(kDeviceType, c10::openreg::resolveDeviceIndex(value.toDevice().index()));
      addPlain(c10::Device(kCPU));
    } else if (value.isGenerator() || (value.isNone() && isGenerator(of))) {
      call.description_.addGenerator();
      call.generators_.push_back(call.values_.size());
      addPlain(value);
    } else {
      call.description_.addPlain(value, of);
      addPlain(value);
    }
  }

 private:
  void addTensor(const Tensor& tensor) {
    const size_t earlier = call.tensors_.size();
    const size_t place = placeOf(tensor);
    call.description_.addTensor(tensor, place == earlier, place, call.tensors().slice(0, earlier));
    call.values_.push_back({CallValue::Kind::Tensor, 1, {}});
  }

  void addList(c10::ArrayRef<c10::IValue> list, CallValue::Kind kind) {
    call.description_.beginList(list.size());
    for (const c10::IValue& element : list) {
      if (element.isNone()) {
        call.places_.push_back(kNoTensor);
        call.description_.addNone();
        continue;
      }
      const size_t earlier = call.tensors_.size();
      const size_t place = placeOf(element.toTensor());
      call.description_.addElement(element.toTensor(), place == earlier, place);
    }
    call.description_.endList();
    call.values_.push_back({kind, static_cast<uint32_t>(list.size()), {}});
  }

  void addPlain(const c10::IValue& value) {
    call.values_.push_back({CallValue::Kind::Plain, 0, value});
  }

  // Returns the place of the tensor; a new tensor is added.
  size_t placeOf(const Tensor& tensor) {
    const size_t next = call.tensors_.size();
    const size_t place = call.first_places_.findOrAdd(tensor.unsafeGetTensorImpl(), next);
    call.places_.push_back(place);
    const bool is_openreg = isOpenReg(tensor);
    if (place == next) {
      call.tensors_.push_back(&tensor);
      if (is_openreg) {
        call.device_tensors_.push_back(&tensor);
      }
    }
    if (!is_openreg) {
      call.is_mixed_ = call.is_mixed_ || tensor.defined();
    } else if (!of_tensors.has_value()) {
      of_tensors = tensor.device();
    } else {
      call.is_mixed_ = call.is_mixed_ || *of_tensors != tensor.device();
    }
    return place;
  }
};

BoxedCall::BoxedCall(FallbackOperator& known, const c10::OperatorHandle& op,
                     const torch::jit::Stack& stack)
    : known_(known),
      op_(op),
      arguments_(argumentsOnStack(op.schema(), stack)),
      device_(kDeviceType),
      description_(&known, known.canPlan(schema(), arguments_), known.countsWithNumbers()) {
  Collector collector{*this};
  for (size_t i = 0; i < arguments_.size(); ++i) {
    collector.add(arguments_[i], schema().arguments()[i]);
  }
  device_ = collector.of_tensors.has_value() ? *collector.of_tensors
                                             : collector.of_argument.value_or(c10::Device(
                                                   kDeviceType, c10::openreg::current_device()));
  signature_ = description_.finish();
}

void BoxedCall::checkDevices(c10::DispatchKey functionality) const {
  if (const char* const wrapper = known_.cudaKernel().checking_wrapper) {
    openreg::checkDevices(wrapper, schema(), arguments_, functionality);
  }
  for (const size_t index : generators_) {
    const auto generator = values_[index].plain.toOptional<Generator>();
    TORCH_CHECK(!device_tensors_.empty() || !generator.has_value() ||
                    generator->device().type() != kDeviceType,
                "Expected a 'cpu' device type for generator but found '", kDeviceType, "'");
  }
  visitTensors([&](const Tensor& tensor, const c10::Argument& argument) {
    const bool is_taken =
        !tensor.defined() || (tensor.is_cpu() ? takesCpuTensor(schema().name(), argument, tensor)
                                              : !isOpenReg(tensor) || tensor.device() == device_);
    TORCH_CHECK(is_taken,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                device_, " and ", tensor.device(), "!\nThe operator is ", schema().operator_name());
  });
}

bool BoxedCall::waitsOnCuda() const {
  LayoutCounts layouts;
  if (signature_ == nullptr) {  // else, all tensors are plain
    visitTensors([&](const Tensor& tensor, const c10::Argument& /*argument*/) {
      if (tensor.defined() && !isPlain(tensor)) {
        ++layouts.not_plain;
        layouts.are_coalesced =
            layouts.are_coalesced && (!tensor.is_sparse() || tensor.is_coalesced());
      }
    });
  }
  return known_.waitsOnCuda(schema(), arguments_, layouts);
}

}  // namespace at::openreg
