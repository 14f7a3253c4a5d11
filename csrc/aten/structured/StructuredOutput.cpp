#include "csrc/aten/structured/StructuredOutput.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Activation.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "csrc/aten/kernel/EmptyTensor.h"

namespace at::openreg {

namespace {

Tensor allocate(IntArrayRef sizes, IntArrayRef strides, const TensorOptions& options) {
  const ScalarType dtype = typeMetaToScalarType(options.dtype());
  if (strides.empty()) {
    return emptyOnCurrentDevice(sizes, dtype, options.memory_format_opt());
  }
  return emptyStridedOnCurrentDevice(sizes, strides, dtype);
}

template <typename Property>
void checkInPlaceProperty(const char* name, const Property& given, const Property& wanted) {
  TORCH_CHECK(given == wanted, "Bad in-place call: input tensor ", name, " ", given,
              " and output tensor ", name, " ", wanted, " should match");
}

// A TensorIterator checks these by itself; shape functions without one rely on us.
void checkInPlace(const Tensor& self, IntArrayRef sizes, const TensorOptions& options) {
  checkInPlaceProperty("dtype", self.dtype(), options.dtype());
  checkInPlaceProperty("device", self.device(), options.device());
  checkInPlaceProperty("size", self.sizes(), sizes);
}

void resizeOut(const Tensor& out, IntArrayRef sizes, IntArrayRef strides,
               const TensorOptions& options) {
  TORCH_CHECK(options.dtype() == out.dtype(), "Expected out tensor to have dtype ", options.dtype(),
              ", but got ", out.dtype(), " instead");
  TORCH_CHECK(options.device() == out.device(), "Expected out tensor to have device ",
              options.device(), ", but got ", out.device(), " instead");
  if (!at::native::resize_output(out, sizes)) {
    return;  // the caller's strides stay
  }
  if (!strides.empty()) {
    out.as_strided_(sizes, strides);
  } else if (const auto memory_format = options.memory_format_opt()) {
    out.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
}

// Large enough for the windows of pooling kernels, small enough to cost nothing in five dimensions.
constexpr int64_t kMaxStandInSize = 8;

Tensor emptyStandIn(const Tensor& output) {
  return output.defined() ? at::detail::empty_cpu({0}, output.scalar_type()) : Tensor();
}

// Sizes that are equal stay equal, and a size of 1 stays 1, so that shapes still fit each other.
// Zeros are valid indices into it.
Tensor zeroStandIn(const Tensor& input) {
  if (!input.defined()) {
    return Tensor();
  }
  DimVector sizes(input.sizes());
  for (int64_t& size : sizes) {
    size = std::min(size, kMaxStandInSize);
  }
  Tensor stand_in = at::detail::empty_cpu(sizes, input.scalar_type());
  std::memset(stand_in.mutable_data_ptr(), 0, stand_in.nbytes());
  if (input.unsafeGetTensorImpl()->is_wrapped_number()) {
    stand_in.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return stand_in;
}

// Whether a CPU kernel complains about dtypes. No kernel does so because of sizes or values, and
// the stand-ins have the dtypes of the operands: such a complaint holds for the operands too.
bool isAboutDtypes(const c10::Error& error) {
  constexpr std::array<std::string_view, 4> kPhrases = {
      "not implemented for",
      "expected scalar type",
      "to have the same dtype",
      "Expected a floating point or complex tensor",
  };
  const std::string_view text = error.what_without_backtrace();
  return dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr ||
         std::any_of(kPhrases.begin(), kPhrases.end(), [&](std::string_view phrase) {
           return text.find(phrase) != std::string_view::npos;
         });
}

}  // namespace

void setStructuredOutput(OutputForm form, Tensor& output, IntArrayRef sizes, IntArrayRef strides,
                         const TensorOptions& options) {
  switch (form) {
    case OutputForm::Functional:
      output = allocate(sizes, strides, options);
      break;
    case OutputForm::InPlace:
      checkInPlace(output, sizes, options);
      break;
    case OutputForm::Out:
      resizeOut(output, sizes, strides, options);
      break;
  }
}

void KnownDtypes::tryOut(ArrayRef<const Tensor*> operands, size_t output_count,
                         c10::function_ref<void(Tensor*)> kernel) {
  const CpuKernelScope scope;
  std::vector<Tensor> stand_ins;
  stand_ins.reserve(operands.size());
  for (const Tensor* operand : operands) {
    const bool is_output = stand_ins.size() < output_count;
    stand_ins.push_back(is_output ? emptyStandIn(*operand) : zeroStandIn(*operand));
  }
  try {
    kernel(stand_ins.data());
  } catch (const c10::Error& error) {
    if (isAboutDtypes(error)) {
      throw;
    }
  }
}

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

const Tensor* detail::operandOf(const std::optional<Tensor>& tensor) {
  static const Tensor undefined;
  return tensor.has_value() ? &*tensor : &undefined;
}

c10::List<std::optional<Tensor>> deviceIndices(const Tensor& self,
                                               const c10::List<std::optional<Tensor>>& indices) {
  const auto is_ready = [&](const std::optional<Tensor>& index) {
    return !index.has_value() || !index->defined() ||
           (index->device() == self.device() && index->scalar_type() != kBool &&
            index->scalar_type() != kByte);
  };
  // The shape function rejects a list that is too long; expanding it would fail with less to say.
  const bool is_too_long = static_cast<int64_t>(indices.size()) > self.dim();
  if (is_too_long || std::all_of(indices.begin(), indices.end(), is_ready)) {
    return indices;
  }
  return at::native::toListOfOptionalTensors(
      at::native::expandTensors(self, indices, /*ensure_same_device=*/true));
}

void checkGeluApproximation(c10::string_view approximate) {
  at::native::get_gelutype_enum(approximate);
}

void checkNotHalfToFloat(bool half_to_float) {
  TORCH_CHECK(!half_to_float,
              "softmax: expected half_to_float to be False, got True; convert the input instead");
}

std::vector<TensorAlias> aliasList(const ITensorListRef& tensors) {
  std::vector<TensorAlias> aliases;
  aliases.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    aliases.emplace_back(tensor);
  }
  return aliases;
}

std::vector<TensorAlias> aliasList(const c10::List<std::optional<Tensor>>& tensors) {
  std::vector<TensorAlias> aliases;
  aliases.reserve(tensors.size());
  for (const std::optional<Tensor>& tensor : tensors) {
    aliases.emplace_back(tensor);
  }
  return aliases;
}

c10::List<std::optional<Tensor>> optionalTensorsOf(const std::vector<TensorAlias>& aliases) {
  c10::List<std::optional<Tensor>> tensors;
  tensors.reserve(aliases.size());
  for (const TensorAlias& alias : aliases) {
    tensors.push_back(alias.optionalTensor());
  }
  return tensors;
}

}  // namespace at::openreg
