// What a kernel has against its arguments, found out at the call.
//
// Note [Trials]
// Most of an operator's checks are in its shape function, which runs at the call. What is left the
// kernel says when it runs. On the worker that is too late: the caller has to see the error at the
// call. So before an operator's first launch with arguments of one kind, its kernel runs once on
// the calling thread, on small CPU tensors that are all zeros and whose dtypes, sizes and identity
// are to each other as the operands' are. If it complains, it runs on zeros of the operands' own
// sizes, then on ones, and if it complains of all three, its exception is the call's. Later
// launches with arguments of that kind cost the comparison of a key.
//
// A kind is the dtypes of the operands, which inputs are outputs, too, the values or classes of all
// other arguments (Note [Classes of numbers]), and, of operators whose shape function is not a
// TensorIterator, which checks sizes by itself, the sizes that the small tensors have.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

#include "csrc/aten/kernel/NumberClass.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// The kind of a call's arguments, as a number.
class ArgumentsKey {
 public:
  void add(uint64_t word) { key_ = (key_ ^ word) * 0x9E3779B97F4A7C15U + (key_ >> 29); }

  void add(double number) { add(classOf(number)); }
  void add(const Scalar& number) { add(classOf(number)); }
  void add(bool value) { add(uint64_t(value)); }
  void add(int64_t value) { add(uint64_t(value)); }
  void add(ScalarType dtype) { add(uint64_t(dtype)); }
  void add(std::string_view text) { add(uint64_t(std::hash<std::string_view>()(text))); }
  void add(IntArrayRef values) {
    add(uint64_t(values.size()));
    for (const int64_t value : values) {
      add(value);
    }
  }
  void add(OptionalIntArrayRef values) {
    add(values.has_value());
    if (values.has_value()) {
      add(*values);
    }
  }
  // Operators with lists of tensors, of which there are no stand-ins, are not tried out.
  void add(const ITensorListRef& /*tensors*/) {}
  void add(const c10::List<std::optional<Tensor>>& /*tensors*/) {}
  template <typename T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value.has_value()) {
      add(*value);
    }
  }

  uint64_t value() const { return key_ | 1; }  // 0 is no key

 private:
  uint64_t key_ = 0;
};

// The first of `output_count` outputs that the operand at `index` is; the index itself if it is
// none of those before it.
inline size_t firstSame(ArrayRef<const Tensor*> operands, size_t index, size_t output_count) {
  for (size_t output = 0; output < output_count && output < index; ++output) {
    if (operands[index]->is_same(*operands[output])) {
      return output;
    }
  }
  return index;
}

// The trials of one operator.
class OPENREG_EXPORT Trials {
 public:
  // Runs `kernel` with stand-ins of the operands, outputs first, unless that was done for such
  // arguments before. `key` has the arguments that are no operands. `are_sizes_checked` says
  // whether the shape function has checked the operands' sizes.
  // Errors: what the kernel throws.
  void check(ArrayRef<const Tensor*> operands, size_t output_count, ArgumentsKey key,
             bool are_sizes_checked, c10::function_ref<void(Tensor*)> kernel) {
    for (size_t index = 0; index < operands.size(); ++index) {
      const Tensor& operand = *operands[index];
      const auto dtype = operand.defined() ? operand.scalar_type() : ScalarType::Undefined;
      key.add(uint64_t(dtype) | firstSame(operands, index, output_count) << 8);
    }
    if (!are_sizes_checked) {
      addSizes(operands, output_count, key);
    }
    std::atomic<uint64_t>& known = known_[(key.value() >> 32) % known_.size()];
    if (C10_LIKELY(known.load(std::memory_order_relaxed) == key.value())) {
      return;
    }
    tryOut(operands, output_count, kernel);
    known.store(key.value(), std::memory_order_relaxed);
  }

 private:
  static void addSizes(ArrayRef<const Tensor*> operands, size_t output_count, ArgumentsKey& key);

  static void tryOut(ArrayRef<const Tensor*> operands, size_t output_count,
                     c10::function_ref<void(Tensor*)> kernel);

  // Kinds that share a place take turns.
  std::array<std::atomic<uint64_t>, 64> known_{};
};

}  // namespace at::openreg
