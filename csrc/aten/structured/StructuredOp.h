// The first phase of a generated operator: its shape function, and the outputs that it describes.
//
// A structured operator has a shape function (at::meta::structured_*) that reports each output by
// calling set_output_*, and a CPU kernel (at::cpu::*_outf). codegen/gen_structured.py emits per
// operator, in terms of this header and of StructuredLaunch.h:
//
//   StructuredOp<at::meta::structured_mm, 1> op;  // or op(OutputForm::Out, out)
//   op.meta(self, mat2);                          // checks and allocates, on the calling thread
//   launchStructured<"aten::mm">(
//       op, std::tie(self, mat2), std::tie(),
//       [](Tensor& out, const Tensor& self, const Tensor& mat2) {
//         at::cpu::mm_outf(self, mat2, out);      // on the worker, on CPU tensors
//       });
//
// Note [Outputs with other strides]
// Some kernels require certain strides of an output. torch's own backends then compute into a
// temporary and copy it back. Here, the caller's tensor is passed on: the CPU kernel makes the same
// decision on the worker, and its temporary is in host memory.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// How an overload gets its outputs: allocates them, writes its first argument, or writes tensors
// that the caller gave and that may be resized.
enum class OutputForm : uint8_t { Functional, InPlace, Out };

// Gets outputs as a shape function describes them. During its lifetime, the current device is that
// of the outputs.
class OPENREG_EXPORT OutputProvider {
 public:
  explicit OutputProvider(OutputForm form) : form_(form) {}

  // Allocates `allocated` for the functional form; makes `given` match for the others, or throws.
  void provide(Tensor& allocated, const Tensor& given, IntArrayRef sizes, IntArrayRef strides,
               const TensorOptions& options);

 private:
  OutputForm form_;
  c10::OptionalDeviceGuard guard_;
};

// Gives an output that the shape function has sized the memory format that `model` suggests, as
// `output.resize_(output.sizes(), model.suggest_memory_format())` does on the CPU. The strides of
// the caller's tensor are lost. Throws if its storage is too small.
OPENREG_EXPORT void setMemoryFormat(const Tensor& output, const Tensor& model);

// If the output is complex and has elements, gives it the conjugate bit, under the condition.
OPENREG_EXPORT void setConjugate(const Tensor& output, bool condition);

// A shape function and the outputs it describes. During its lifetime, the caller's outputs exist.
// It has no references to these, because a second reference to a tensor that Python has takes the
// GIL.
template <typename Meta, size_t Count>
class StructuredOp final : public Meta {
 public:
  static constexpr size_t kOutputs = Count;

  // Whether the shape function checks the sizes of all operands, as a TensorIterator does.
  static constexpr bool kChecksSizes = std::is_base_of_v<TensorIteratorBase, Meta>;

  StructuredOp() : provider_(OutputForm::Functional) {
    std::transform(allocated_.begin(), allocated_.end(), outputs_.begin(),
                   [](const Tensor& tensor) { return &tensor; });
  }

  template <typename... Outputs>
  explicit StructuredOp(OutputForm form, const Outputs&... outputs)
      : provider_(form), outputs_{&outputs...} {
    static_assert(sizeof...(Outputs) == Count);
  }

  StructuredOp(const StructuredOp&) = delete;
  StructuredOp& operator=(const StructuredOp&) = delete;

  void set_output_strided(int64_t index, IntArrayRef sizes, IntArrayRef strides,
                          TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
  }

  void set_output_raw_strided(int64_t index, IntArrayRef sizes, IntArrayRef strides,
                              TensorOptions options) override {
    provider_.provide(allocated_[index], *outputs_[index], sizes, strides, options);
    // Last, because a TensorIterator reads the output here.
    if constexpr (kChecksSizes) {
      Meta::set_output_raw_strided(index, sizes, strides, options);
    }
  }

  const Tensor& maybe_get_output(int64_t index) override { return *outputs_[index]; }

  const std::array<const Tensor*, Count>& outputs() const { return outputs_; }

  // What the functional form returns: one tensor or a tuple.
  auto result() {
    if constexpr (Count == 1) {
      return std::move(allocated_[0]);
    } else {
      return std::apply([](auto&... outputs) { return std::make_tuple(std::move(outputs)...); },
                        allocated_);
    }
  }

 private:
  OutputProvider provider_;
  std::array<Tensor, Count> allocated_;  // of the functional form
  std::array<const Tensor*, Count> outputs_;
};

// Arguments of the shape functions.

inline OptionalTensorRef tensorRef(const std::optional<Tensor>& tensor) {
  return tensor.has_value() && tensor->defined() ? OptionalTensorRef(*tensor) : OptionalTensorRef();
}

inline OptionalScalarRef scalarRef(const std::optional<Scalar>& scalar) {
  return scalar.has_value() ? OptionalScalarRef(*scalar) : OptionalScalarRef();
}

// Converts indices to what an index kernel on the device of `self` takes: masks become lists of
// positions, which requires waiting for the masks, and host tensors are copied to the device.
// Indices on other devices stay there; the shape function rejects them.
OPENREG_EXPORT c10::List<std::optional<Tensor>> deviceIndices(
    const Tensor& self, const c10::List<std::optional<Tensor>>& indices);

// With device type cuda: throws if an argument of addcmul is a CPU tensor that the shape function
// takes as a number and CUDA's kernel does not.
OPENREG_EXPORT void checkAddcmulNumbers(const Tensor& self, const Tensor& tensor1);

// Throws unless the kernel of `aten::index` has the dtype.
OPENREG_EXPORT void checkIndexes(ScalarType dtype);

}  // namespace at::openreg
