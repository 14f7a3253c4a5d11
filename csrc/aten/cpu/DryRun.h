// Runs a kernel once at the call, to find out whether it rejects the arguments.
//
// Note [Dry runs]
// Most checks of an operator are in its shape function, which runs at the call. The kernel makes
// the remaining checks when it runs. On the worker that is too late, because the caller must see
// the error at the call. So before an operator's first launch with arguments of one kind, its
// kernel runs once on the calling thread, on small CPU tensors that are all zeros. Their dtypes,
// sizes and identity have the same relations as those of the operands. If the kernel throws, it
// runs again on zeros with the operands' own sizes, then on ones. If all three runs throw, the call
// throws the last exception. Later launches with arguments of that kind cost only the comparison of
// a key.
//
// A kind consists of the dtypes of the operands, of which inputs are outputs as well, and of the
// values or classes of all other arguments (Note [Classes of numbers]). For operators whose shape
// function is not a TensorIterator, which checks sizes itself, it also has the sizes of the small
// tensors.
//
// Outputs that overlap need a run of their own: see Note [Outputs that overlap] in
// csrc/aten/structured/StructuredLaunch.cpp.
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

#include "csrc/aten/cpu/NumberClass.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// A contiguous CPU tensor that is filled with `value`. Zeros are valid indices, ones are valid
// divisors.
Tensor dummy(ScalarType dtype, IntArrayRef sizes, int value = 0);

// What dummies keep of their operands, besides dtypes and identity.
enum class DummyForm : uint8_t {
  SmallSizes,  // which sizes are equal
  OwnSizes,
  OwnMemory,  // sizes, strides, and how their memory overlaps
};

// Calls `kernel` once with dummies of the operands, outputs first, as a CPU kernel is called, and
// drops its warnings, which are about the dummies.
// Errors: those of the kernel.
void dryRun(ArrayRef<const Tensor*> operands, size_t output_count, DummyForm form, int value,
            c10::function_ref<void(Tensor*)> kernel);

// The kind of a call's arguments, as a hash.
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
  // Operators that take lists of tensors, for which there are no dummies, have no dry run.
  void add(const ITensorListRef& /*tensors*/) {}
  void add(const c10::List<std::optional<Tensor>>& /*tensors*/) {}
  template <typename T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value.has_value()) {
      add(*value);
    }
  }

  uint64_t value() const { return key_ | 1; }  // 0 means no key

 private:
  uint64_t key_ = 0;
};

// The index of the first of `output_count` outputs that is the same tensor as the operand at
// `index`; `index` itself if there is none before it.
inline size_t firstSame(ArrayRef<const Tensor*> operands, size_t index, size_t output_count) {
  for (size_t output = 0; output < output_count && output < index; ++output) {
    if (operands[index]->is_same(*operands[output])) {
      return output;
    }
  }
  return index;
}

// The dry runs of one operator.
class OPENREG_EXPORT DryRuns {
 public:
  // Runs `kernel` on dummies of the operands, outputs first, unless that was done before for
  // arguments of this kind. `key` has the arguments that are not operands. `are_sizes_checked`: the
  // shape function has checked the operands' sizes.
  // Errors: those of the kernel.
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
    run(operands, output_count, kernel);
    known.store(key.value(), std::memory_order_relaxed);
  }

 private:
  static void addSizes(ArrayRef<const Tensor*> operands, size_t output_count, ArgumentsKey& key);

  static void run(ArrayRef<const Tensor*> operands, size_t output_count,
                  c10::function_ref<void(Tensor*)> kernel);

  // Kinds with the same slot replace each other.
  std::array<std::atomic<uint64_t>, 64> known_{};
};

}  // namespace at::openreg
