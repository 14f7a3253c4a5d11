// What the generated operators share: their outputs, their operands, their launch.
//
// A structured operator has a shape function (at::meta::structured_*) that reports each output by
// calling set_output_*, and a CPU kernel (at::cpu::*_outf). codegen/gen_structured.py emits per
// operator, in terms of this header:
//
//   StructuredOp<at::meta::structured_mm, 1> op;  // or op(OutputForm::Out, out)
//   op.meta(self, mat2);                          // checks and allocates, on the calling thread
//   launchStructured<"aten::mm">(
//       Operands(op.outputs(), self, mat2),
//       [](Tensor& out, const Tensor& self, const Tensor& mat2) {
//         at::cpu::mm_outf(self, mat2, out);      // on the worker, on CPU tensors
//       });
//
// Note [Outputs with other strides]
// Some kernels need an output of certain strides. Where torch's own backends then compute into a
// temporary and copy it back, we pass the caller's tensor on: the CPU kernel makes the same
// decision again on the worker, and its temporary is host memory.
#pragma once

#include <ATen/DimVector.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/op_registration/adaption.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Scalar.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "csrc/aten/OpLaunch.h"

namespace at::openreg {

// Throws unless all tensors added are on one device; undefined tensors are on every device.
// `method` must outlive the check, as must the arguments' names.
class DeviceCheck {
 public:
  explicit DeviceCheck(const char* method) : method_(method) {}

  // Takes Tensor, std::optional<Tensor> or a list of tensors.
  template <typename Tensors>
  DeviceCheck& add(const Tensors& tensors, const char* argument) {
    c10::impl::check_and_update_common_device(device_, tensors, method_, argument);
    return *this;
  }

 private:
  const char* method_;
  std::optional<Device> device_;
};

// How an overload gets its outputs: allocates them, writes its first argument, or writes tensors
// that the caller gave and that may be resized.
enum class OutputForm : uint8_t { Functional, InPlace, Out };

// Makes `output` what the shape function asks for, or throws.
OPENREG_EXPORT void setStructuredOutput(OutputForm form, Tensor& output, IntArrayRef sizes,
                                        IntArrayRef strides, const TensorOptions& options);

// A shape function together with the outputs it describes. While it lives, the current device is
// that of the outputs.
template <typename Meta, size_t Count>
class StructuredOp final : public Meta {
 public:
  StructuredOp() : form_(OutputForm::Functional) {}

  template <typename... Outputs>
  explicit StructuredOp(OutputForm form, const Outputs&... outputs)
      : form_(form), outputs_{outputs...} {
    static_assert(sizeof...(Outputs) == Count);
  }

  void set_output_strided(int64_t index, IntArrayRef sizes, IntArrayRef strides,
                          TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
  }

  void set_output_raw_strided(int64_t index, IntArrayRef sizes, IntArrayRef strides,
                              TensorOptions options) override {
    guard_.reset_device(options.device());
    setStructuredOutput(form_, outputs_[index], sizes, strides, options);
    // Last, as a TensorIterator asks for the output here.
    if constexpr (std::is_base_of_v<TensorIteratorBase, Meta>) {
      Meta::set_output_raw_strided(index, sizes, strides, options);
    }
  }

  const Tensor& maybe_get_output(int64_t index) override { return outputs_[index]; }

  const std::array<Tensor, Count>& outputs() const { return outputs_; }

  // What the functional form returns: one tensor or a tuple.
  auto result() {
    if constexpr (Count == 1) {
      return std::move(outputs_[0]);
    } else {
      return std::apply([](auto&... outputs) { return std::make_tuple(std::move(outputs)...); },
                        outputs_);
    }
  }

 private:
  OutputForm form_;
  std::array<Tensor, Count> outputs_;
  c10::OptionalDeviceGuard guard_;
};

// The tensors of one call as the worker will see them: outputs, then inputs in the order given.
// An input that is an output becomes the same CPU tensor, as kernels ask `self.is_same(out)`.
template <size_t OutputCount, size_t Count>
class Operands {
 public:
  // Inputs are Tensor or std::optional<Tensor>.
  template <typename... Inputs>
  explicit Operands(const std::array<Tensor, OutputCount>& outputs, const Inputs&... inputs)
      : device_(outputs[0].device()) {
    size_t index = 0;
    for (const Tensor& output : outputs) {
      aliases_[index++] = TensorAlias(output);
    }
    (setInput(index++, outputs, inputs), ...);
  }

  Device device() const { return device_; }

  // The operands live as long as the tensors.
  std::array<Tensor, Count> tensors() const {
    std::array<Tensor, Count> tensors;
    for (size_t index = 0; index < Count; ++index) {
      const size_t output = same_as_[index];
      tensors[index] = output == kNoOutput ? aliases_[index].tensor() : tensors[output];
    }
    return tensors;
  }

 private:
  static constexpr uint8_t kNoOutput = 0xff;

  template <typename Input>
  void setInput(size_t index, const std::array<Tensor, OutputCount>& outputs, const Input& input) {
    for (size_t output = 0; output < OutputCount; ++output) {
      if (isSame(input, outputs[output])) {
        same_as_[index] = static_cast<uint8_t>(output);
        return;
      }
    }
    aliases_[index] = TensorAlias(input);
  }

  static bool isSame(const Tensor& input, const Tensor& output) {
    return input.defined() && input.is_same(output);
  }
  static bool isSame(const std::optional<Tensor>& input, const Tensor& output) {
    return input.has_value() && isSame(*input, output);
  }

  static constexpr std::array<uint8_t, Count> noOutputs() {
    std::array<uint8_t, Count> none{};
    none.fill(kNoOutput);
    return none;
  }

  Device device_;
  std::array<uint8_t, Count> same_as_ = noOutputs();
  std::array<TensorAlias, Count> aliases_;
};

template <size_t OutputCount, typename... Inputs>
Operands(const std::array<Tensor, OutputCount>&, const Inputs&...)
    -> Operands<OutputCount, OutputCount + sizeof...(Inputs)>;

// Waits for the current stream of `device`.
OPENREG_EXPORT void waitForCurrentStream(Device device);

// docs: launch-structured
// Enqueues `kernel`, called with the operands' CPU tensors.
//
// With `on_calling_thread` it is called here, after the work of the stream: for kernels that
// report what they found in the data, as an exception that the caller has to see.
template <c10::openreg::KernelName Name, size_t OutputCount, size_t Count, typename Kernel>
void launchStructured(Operands<OutputCount, Count> operands, Kernel kernel,
                      bool on_calling_thread = false) {
  const Device device = operands.device();
  auto run = [operands = std::move(operands), kernel = std::move(kernel)] {
    auto tensors = operands.tensors();
    std::apply(kernel, tensors);
  };
  if (on_calling_thread) {
    waitForCurrentStream(device);
    run();
  } else {
    launchOp<Name>(device, std::move(run));
  }
}
// docs: end

// Arguments of the shape functions.

inline OptionalTensorRef tensorRef(const std::optional<Tensor>& tensor) {
  return tensor.has_value() && tensor->defined() ? OptionalTensorRef(*tensor)
                                                 : OptionalTensorRef();
}

inline OptionalScalarRef scalarRef(const std::optional<Scalar>& scalar) {
  return scalar.has_value() ? OptionalScalarRef(*scalar) : OptionalScalarRef();
}

// Indices as an index kernel on the device of `self` takes them: masks become lists of positions,
// which reads the masks and therefore waits for them, and host tensors move to the device.
OPENREG_EXPORT c10::List<std::optional<Tensor>> deviceIndices(
    const Tensor& self, const c10::List<std::optional<Tensor>>& indices);

// Arguments that a closure owns, and their views for the kernel.

inline std::optional<DimVector> ownedDims(OptionalIntArrayRef dims) {
  return dims.has_value() ? std::make_optional<DimVector>(*dims) : std::nullopt;
}

inline OptionalIntArrayRef dimsRef(const std::optional<DimVector>& dims) {
  return dims.has_value() ? OptionalIntArrayRef(*dims) : OptionalIntArrayRef();
}

inline std::optional<std::string> ownedString(std::optional<c10::string_view> text) {
  return text.has_value() ? std::make_optional<std::string>(*text) : std::nullopt;
}

inline std::optional<Tensor> optionalTensor(const Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

OPENREG_EXPORT std::vector<TensorAlias> aliasList(const ITensorListRef& tensors);
OPENREG_EXPORT std::vector<TensorAlias> aliasList(const c10::List<std::optional<Tensor>>& tensors);
OPENREG_EXPORT c10::List<std::optional<Tensor>> optionalTensorsOf(
    const std::vector<TensorAlias>& aliases);

}  // namespace at::openreg
