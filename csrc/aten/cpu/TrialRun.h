// Runs a kernel once at the call, to find out whether it rejects the arguments.
//
// Note [Trial runs]
// Most checks of an operator are in its shape function, which runs at the call. The kernel makes
// the remaining checks when it runs. On the worker that is too late, because the caller must see
// the error at the call. So before an operator's first launch with arguments of one kind, its
// kernel runs once on the calling thread, on small CPU tensors that are all zeros. Their dtypes,
// sizes and identity have the same relations as those of the operands. If the kernel throws, it
// runs again on zeros with the operands' own sizes, then on ones. If all three runs throw, the call
// throws the last exception. Later launches with arguments of that kind cost only the comparison of
// a key.
//
// A kind consists of the dtypes of the operands, of whether they have none, one or more elements,
// of which inputs are outputs as well, and of the values or classes of all other arguments (Note
// [Classes of numbers]). For operators whose shape function is not a TensorIterator, which checks
// sizes itself, it also has the sizes of the small tensors.
//
// Note [Rare dtypes]
// Of the dtypes that only a few kernels have, such as uint16, float8 and int4, an operator may have
// one kernel for small tensors and none for large ones. So with these, the first run has the
// operands' own sizes, unless they are large, and the kind has these sizes.
//
// The warnings of the runs are given to the caller, as the CPU's kernel would give them. A kind
// that warned runs again at its next call, so what warns in each call warns in each call here, too.
// A warning about sizes would state those of the small tensors; there is none.
//
// Outputs that overlap need a run of their own: see Note [Outputs that overlap] in
// csrc/aten/structured/StructuredLaunch.cpp.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

#include "csrc/aten/cpu/NumberClass.h"
#include "csrc/core/Digest.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// A contiguous CPU tensor that is filled with `value`, or with zeros if the dtype has no fill.
// Zeros are valid indices, ones are valid divisors.
Tensor dummy(ScalarType dtype, IntArrayRef sizes, int value = 0);

// Whether only a few kernels have the dtype; see Note [Rare dtypes].
constexpr bool isRare(ScalarType dtype) {
  return dtype > ScalarType::QUInt2x4 && dtype < ScalarType::Undefined;
}

// The dtypes that a kernel has, as far as it was asked: the trial runs of an operator whose kernel
// rejects nothing but dtypes.
class OPENREG_EXPORT CheckedDtypes {
 public:
  // Calls `run`, which runs the kernel on dummies of the dtype, unless it has succeeded before.
  // Errors: those of `run`.
  void check(ScalarType dtype, c10::function_ref<void()> run) {
    if (C10_UNLIKELY(!contain(dtype))) {
      runOnDummies(dtype, run);
    }
  }

  bool contain(ScalarType dtype) const {
    return (known_.load(std::memory_order_relaxed) >> static_cast<int>(dtype) & 1) != 0;
  }

 private:
  static_assert(static_cast<int>(ScalarType::NumOptions) <= 64);

  void runOnDummies(ScalarType dtype, c10::function_ref<void()> run);

  std::atomic<uint64_t> known_{0};  // a bit for each
};

// For pairs of dtypes: one for each first dtype.
using CheckedDtypePairs = std::array<CheckedDtypes, static_cast<size_t>(ScalarType::NumOptions)>;

// What dummies keep of their operands, besides dtypes and identity.
enum class DummyForm : uint8_t {
  SmallSizes,  // which sizes are equal
  OwnSizes,
  OwnMemory,  // sizes, strides, and how their memory overlaps
};

// Calls `kernel` once with dummies of the operands, outputs first, as a CPU kernel is called. Its
// warnings are those of the calling thread.
// Errors: those of the kernel.
void trialRun(ArrayRef<const Tensor*> operands, size_t output_count, DummyForm form, int value,
              c10::function_ref<void(Tensor*)> kernel);

// The kind of a call's arguments, as a hash.
class ArgumentsKey {
 public:
  void add(uint64_t word) { key_ = (key_ ^ word) * c10::openreg::kHashFactor + (key_ >> 29); }

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
  // Operators that take lists of tensors, for which there are no dummies, have no trial run.
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

// The trial runs of one operator.
class OPENREG_EXPORT TrialRuns {
 public:
  // Runs `kernel` on dummies of the operands, outputs first, unless that was done before for
  // arguments of this kind. `key` has the arguments that are not operands. `are_sizes_checked`: the
  // shape function has checked the operands' sizes. `takes_zeros`: a run on zeros is possible; else
  // the only run is on ones.
  // Errors: those of the kernel.
  void check(ArrayRef<const Tensor*> operands, size_t output_count, ArgumentsKey key,
             bool are_sizes_checked, bool takes_zeros, c10::function_ref<void(Tensor*)> kernel) {
    key.add(c10::WarningUtils::get_warnAlways());
    bool is_rare = false;
    for (size_t index = 0; index < operands.size(); ++index) {
      const Tensor& operand = *operands[index];
      if (operand.defined()) {
        const ScalarType dtype = operand.scalar_type();
        is_rare = is_rare || isRare(dtype);
        key.add(uint64_t(dtype) | firstSame(operands, index, output_count) << 8 |
                uint64_t(std::min<int64_t>(operand.numel(), 2)) << 16);
      } else {
        key.add(uint64_t(ScalarType::Undefined) | uint64_t(index) << 8);
      }
    }
    if (!are_sizes_checked) {
      addSizes(operands, output_count, key, is_rare);
    }
    std::atomic<uint64_t>& known = known_[(key.value() >> 32) % known_.size()];
    if (C10_LIKELY(known.load(std::memory_order_relaxed) == key.value())) {
      return;
    }
    if (run(operands, output_count, is_rare, takes_zeros, kernel)) {
      known.store(key.value(), std::memory_order_relaxed);
    }
  }

 private:
  static void addSizes(ArrayRef<const Tensor*> operands, size_t output_count, ArgumentsKey& key,
                       bool is_rare);

  // Returns whether the kind need not be checked again: it gave no warning.
  static bool run(ArrayRef<const Tensor*> operands, size_t output_count, bool is_rare,
                  bool takes_zeros, c10::function_ref<void(Tensor*)> kernel);

  // Kinds with the same slot replace each other.
  std::array<std::atomic<uint64_t>, 64> known_{};
};

}  // namespace at::openreg
