#include "csrc/aten/dtypes/HalfTransforms.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string_view>
#include <vector>

#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

constexpr size_t kMaxDimensions = 3;  // that CUDA's library transforms at once

// A call of torch.fft.* or of a primitive such as _fft_c2c.
class Transform {
 public:
  Transform(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments)
      : schema_(schema),
        arguments_(arguments),
        name_(std::string_view(schema.name()).substr(std::string_view("aten::").size())),
        self_(arguments[0].toTensor()) {
    findDimensions();
    findSizes();
  }

  static bool is(const c10::FunctionSchema& schema) {
    const std::string_view name = schema.name();
    return (name.starts_with("aten::fft_") || name.starts_with("aten::_fft_")) &&
           !name.ends_with("shift") && !name.ends_with("freq");
  }

  // In the order of CUDA: the real side of a transform has a call of its own.
  // What torch refuses, such as a size of 0, is left to torch.
  void check() const {
    if (sizes_.empty() || std::ranges::min(sizes_) < 1) {
      return;
    }
    std::vector<int64_t> sizes = sizes_;
    const int64_t last = sizes.back();
    if (writesRealNumbers()) {
      sizes.pop_back();
      checkComplex(sizes);
      checkTogether({last});
    } else if (readsRealNumbers()) {
      sizes.pop_back();
      checkTogether({last});
      checkComplex(sizes);
    } else {
      checkComplex(sizes);
    }
  }

 private:
  bool nameHas(std::string_view text) const { return name_.find(text) != std::string_view::npos; }
  bool writesRealNumbers() const {
    return nameHas("irfft") || name_ == "_fft_c2r" || (nameHas("hfft") && !nameHas("ihfft"));
  }
  bool readsRealNumbers() const {
    return (nameHas("rfft") && !nameHas("irfft")) || nameHas("ihfft") || name_ == "_fft_r2c";
  }

  // None if the operator has no such argument, or the call leaves it out.
  const c10::IValue* given(const char* argument) const {
    const auto index = schema_.argumentIndexWithName(argument);
    return index.has_value() && !arguments_[*index].isNone() ? &arguments_[*index] : nullptr;
  }

  void findDimensions() {
    if (const c10::IValue* dim = given("dim")) {
      dims_ = dim->isInt() ? std::vector<int64_t>{dim->toInt()} : dim->toIntVector();
    } else {
      const c10::IValue* lengths = given("s");
      const size_t count = self_.dim();
      dims_.resize(lengths != nullptr ? std::min(lengths->toListRef().size(), count) : count);
      std::iota(dims_.begin(), dims_.end(), self_.dim() - static_cast<int64_t>(dims_.size()));
    }
    for (int64_t& dim : dims_) {
      dim = at::maybe_wrap_dim(dim, self_.dim());
    }
  }

  void findSizes() {
    for (const int64_t dim : dims_) {
      sizes_.push_back(self_.size(dim));
    }
    if (sizes_.empty()) {
      return;
    }
    if (writesRealNumbers()) {
      sizes_.back() = 2 * (sizes_.back() - 1);
    }
    if (const c10::IValue* length = given("n")) {
      sizes_.back() = length->toInt();
    }
    if (const c10::IValue* length = given("last_dim_size")) {
      sizes_.back() = length->toInt();
    }
    if (const c10::IValue* lengths = given("s")) {
      const auto list = lengths->toListRef();
      for (size_t i = 0; i < std::min(list.size(), sizes_.size()); ++i) {
        const int64_t length = list[i].toInt();
        sizes_[i] = length < 0 ? sizes_[i] : length;
      }
    }
  }

  // The dimensions of a complex transform, the innermost ones first.
  void checkComplex(const std::vector<int64_t>& sizes) const {
    std::vector<size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t one, size_t other) {
      return self_.stride(dims_[one]) > self_.stride(dims_[other]);
    });
    while (!order.empty()) {
      const size_t count = std::min(order.size(), kMaxDimensions);
      std::vector<int64_t> together;
      for (size_t i = order.size() - count; i < order.size(); ++i) {
        together.push_back(sizes[order[i]]);
      }
      checkTogether(together);
      order.resize(order.size() - count);
    }
  }

  static void checkTogether(const std::vector<int64_t>& sizes) {
    const bool are_served = std::ranges::all_of(
        sizes, [](int64_t size) { return std::has_single_bit(static_cast<uint64_t>(size)); });
    TORCH_CHECK(are_served,
                "cuFFT only supports dimensions whose sizes are powers of two when computing in "
                "half precision, but got a signal size of",
                IntArrayRef(sizes));
  }

  const c10::FunctionSchema& schema_;
  const c10::ArrayRef<c10::IValue> arguments_;
  const std::string_view name_;
  const Tensor& self_;
  std::vector<int64_t> dims_;
  std::vector<int64_t> sizes_;  // of the transforms along dims_
};

}  // namespace

void checkHalfTransform(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  if (!c10::openreg::servesCuda() || !Transform::is(schema) || !arguments[0].isTensor()) {
    return;
  }
  const Tensor& self = arguments[0].toTensor();
  const ScalarType dtype = self.scalar_type();
  if ((dtype == ScalarType::Half || dtype == ScalarType::ComplexHalf) && self.numel() > 0 &&
      self.dim() > 0) {
    Transform(schema, arguments).check();
  }
}

}  // namespace at::openreg
