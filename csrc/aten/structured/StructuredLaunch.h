// The second phase of a generated operator: its operands, and the launch of its kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/launch/TensorPool.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/aten/OpLaunch.h"

namespace at::openreg {

// The tensors of a call for the worker: outputs, then inputs. An input that is an output becomes
// the same CPU tensor, because kernels test `self.is_same(out)`.
template <size_t Count>
class StructuredOperands {
 public:
  StructuredOperands(const std::array<const Tensor*, Count>& tensors, size_t output_count) {
    for (size_t index = 0; index < Count; ++index) {
      same_as_[index] = static_cast<uint8_t>(firstSame(tensors, index, output_count));
      if (same_as_[index] == index) {
        aliases_[index].assign(*tensors[index]);
      }
    }
  }

  // CPU tensors. The operands must outlive them.
  std::array<Tensor, Count> tensors(TensorPool& pool) const {
    std::array<Tensor, Count> tensors;
    for (size_t index = 0; index < Count; ++index) {
      const size_t same = same_as_[index];
      const size_t sharing = firstSharing(aliases_, index);
      tensors[index] = same < index      ? tensors[same]
                       : sharing < index ? aliases_[index].tensorOnStorageOf(tensors[sharing])
                                         : aliases_[index].tensor(pool);
    }
    return tensors;
  }

  // Throws unless the first `output_count` tensors returned by tensors() still match the caller's
  // outputs. A kernel that changed the sizes, strides or memory of an output did not write the
  // caller's tensor, or wrote it in another order.
  void checkWritten(const Tensor* tensors, size_t output_count) const {
    for (size_t index = 0; index < output_count; ++index) {
      if (C10_UNLIKELY(!aliases_[index].isDescriptionOf(tensors[index])) &&
          !isEmptyAsBefore(tensors[index], index)) {
        aliases_[index].throwNotWritten(tensors[index]);
      }
    }
  }

 private:
  // The strides of a tensor without elements do not matter.
  bool isEmptyAsBefore(const Tensor& tensor, size_t index) const {
    return tensor.numel() == 0 && aliases_[index].sizes() == tensor.sizes();
  }

  std::array<TensorAlias, Count> aliases_;
  std::array<uint8_t, Count> same_as_;
};

// The tensors of the operands while a kernel runs. They are taken from this thread's pool and
// returned to it.
template <size_t Count>
class KernelTensors {
 public:
  explicit KernelTensors(const StructuredOperands<Count>& operands)
      : pool_(TensorPool::ofThisThread()), tensors_(operands.tensors(pool_)) {}

  // Tensors that share a storage come after its first tensor, so they are returned before it.
  ~KernelTensors() {
    for (size_t index = Count; index-- > 0;) {
      pool_.giveBack(std::move(tensors_[index]));
    }
  }

  KernelTensors(const KernelTensors&) = delete;
  KernelTensors& operator=(const KernelTensors&) = delete;

  Tensor* data() { return tensors_.data(); }

 private:
  TensorPool& pool_;
  std::array<Tensor, Count> tensors_;
};

enum class LaunchMode : uint8_t {
  AfterTrialRun,    // on the worker, see Note [Trial runs]
  AfterRunOfOnes,   // the same; for kernels that must not run on zeros
  WithoutTrialRun,  // on the worker; for kernels that cannot run on dummies
  OnCallingThread,  // here, after the stream's work; for kernels that throw what they find in the
                    // data and whose caller has to see that
};

namespace detail {

inline const Tensor* operandOf(const Tensor& tensor) { return &tensor; }
OPENREG_EXPORT const Tensor* operandOf(const std::optional<Tensor>& tensor);

// Adds the operands of a kernel, outputs first.
void addOutputsAndInputs(c10::openreg::OperandList& list, ArrayRef<const Tensor*> operands,
                         size_t output_count);

// Makes the checks of a kernel that would come too late when it runs: Note [Trial runs] and
// Note [Outputs that overlap]. `key` has the arguments that are not operands; `are_sizes_checked`
// is as for TrialRuns::check.
// Errors: those of the kernel.
OPENREG_EXPORT void checkBeforeLaunch(ArrayRef<const Tensor*> operands, size_t output_count,
                                      bool are_sizes_checked, LaunchMode mode, ArgumentsKey key,
                                      TrialRuns& trial_runs,
                                      c10::function_ref<void(Tensor*)> kernel);

// What a structured operator has of its own.
struct StructuredKernel {
  const char* name;
  orKernel described;
  TrialRuns& trial_runs;
};

// An argument as a closure owns it.
template <typename T>
using Held = decltype(Argument<T>::hold(std::declval<const T&>(), std::declval<Device>()));

template <typename Kernel, size_t... Index, typename... Others>
void callKernel(Kernel kernel, Tensor* tensors, std::index_sequence<Index...> /*indices*/,
                const Others&... others) {
  kernel(tensors[Index]..., others...);
}

// Some kernels conjugate an output by setting its conjugate bit, which does not reach the device
// tensor. This class records the bits and, where one has changed, conjugates the memory instead.
class OPENREG_EXPORT ConjugateBits {
 public:
  ConjugateBits(const Tensor* outputs, size_t count) : bits_(read(outputs, count)) {}

  void restore(const Tensor* outputs, size_t count) const {
    if (C10_UNLIKELY(read(outputs, count) != bits_)) {
      restoreChanged(outputs, count);
    }
  }

 private:
  static uint32_t read(const Tensor* outputs, size_t count) {
    uint32_t bits = 0;
    for (size_t index = 0; index < count; ++index) {
      bits |= uint32_t(outputs[index].is_conj()) << index;
    }
    return bits;
  }

  void restoreChanged(const Tensor* outputs, size_t count) const;

  uint32_t bits_;
};

// The call of an operator's kernel on the worker: one type for all operators of a signature.
template <size_t OutputCount, size_t Count, typename Kernel, typename... Others>
struct StructuredCall {
  StructuredOperands<Count> operands;
  Kernel kernel;
  std::tuple<Held<Others>...> others;

  void operator()() const {
    KernelTensors<Count> tensors(operands);
    const ConjugateBits bits(tensors.data(), OutputCount);
    std::apply(
        [&](const auto&... held) {
          callKernel(kernel, tensors.data(), std::make_index_sequence<Count>(),
                     Argument<Others>::release(held)...);
        },
        others);
    bits.restore(tensors.data(), OutputCount);
    operands.checkWritten(tensors.data(), OutputCount);
  }
};

// launchStructured() without what is of one operator: the compiler makes one for each signature.
template <size_t OutputCount, size_t Count, typename Kernel, typename... Others>
void launchStructured(const StructuredKernel& op, const std::array<const Tensor*, Count>& operands,
                      bool are_sizes_checked, const std::tuple<Others&...>& others, Kernel kernel,
                      LaunchMode mode) {
  ArgumentsKey key;
  if (mode == LaunchMode::AfterTrialRun || mode == LaunchMode::AfterRunOfOnes) {
    std::apply([&](const auto&... other) { (key.add(other), ...); }, others);
  }
  checkBeforeLaunch(
      operands, OutputCount, are_sizes_checked, mode, key, op.trial_runs, [&](Tensor* dummies) {
        std::apply(
            [&](const auto&... other) {
              callKernel(kernel, dummies, std::make_index_sequence<Count>(), other...);
            },
            others);
      });
  const Device device = operands[0]->device();
  const Verdict verdict =
      c10::openreg::observeAccesses(device.index(), op.name, [&](c10::openreg::OperandList& seen) {
        addOutputsAndInputs(seen, operands, OutputCount);
        std::apply([&](const auto&... other) { (addOperands(seen, other, false), ...); }, others);
      });
  const auto make = [&] {
    return std::apply(
        [&](const auto&... other) {
          return StructuredCall<OutputCount, Count, Kernel, std::remove_const_t<Others>...>{
              StructuredOperands<Count>(operands, OutputCount),
              kernel,
              {Argument<std::remove_const_t<Others>>::hold(other, device)...}};
        },
        others);
  };
  if (mode == LaunchMode::OnCallingThread) {
    waitForCurrentStream(device, op.name);
    if (verdict == Verdict::Run) {
      const HostKernelScope scope;
      make()();
    }
  } else {
    launchOp(op.described, device, MadeBy{make}, verdict, op.name);
  }
}

}  // namespace detail

// Runs `kernel`, a function without captures, with CPU tensors of the operator's outputs and
// inputs, then with `others`, as parameters in this order. An input is a Tensor or a
// std::optional<Tensor>; `others` are the remaining arguments, including lists of tensors, which
// are passed as enqueue() passes them.
template <c10::openreg::KernelName Name, typename Op, typename... Inputs, typename... Others,
          typename Kernel>
void launchStructured(const Op& op, const std::tuple<const Inputs&...>& inputs,
                      const std::tuple<Others&...>& others, Kernel kernel,
                      LaunchMode mode = LaunchMode::AfterTrialRun) {
  static constexpr size_t kCount = Op::kOutputs + sizeof...(Inputs);
  using Call = detail::StructuredCall<Op::kOutputs, kCount, decltype(+kernel),
                                      std::remove_const_t<Others>...>;
  static constinit TrialRuns trial_runs;
  static constexpr detail::StructuredKernel kKernel{
      Name.text, c10::openreg::describeKernel<WrappedKernel<Call>>(kKernelName<Name>.text),
      trial_runs};
  std::array<const Tensor*, kCount> operands;
  auto next = std::copy(op.outputs().begin(), op.outputs().end(), operands.begin());
  std::apply([&](const Inputs&... input) { ((*next++ = detail::operandOf(input)), ...); }, inputs);
  detail::launchStructured<Op::kOutputs>(kKernel, operands, Op::kChecksSizes, others, +kernel,
                                         mode);
}

inline std::optional<Tensor> optionalTensor(const Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

}  // namespace at::openreg
