// Operators that fill a tensor with random numbers, with the CPU's kernels and in stream order.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/bernoulli_cpu_dispatch.h>
#include <ATen/ops/cauchy_cpu_dispatch.h>
#include <ATen/ops/exponential_cpu_dispatch.h>
#include <ATen/ops/geometric_cpu_dispatch.h>
#include <ATen/ops/log_normal_cpu_dispatch.h>
#include <ATen/ops/normal_cpu_dispatch.h>
#include <ATen/ops/random_cpu_dispatch.h>
#include <ATen/ops/randperm_cpu_dispatch.h>
#include <ATen/ops/uniform_cpu_dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "csrc/aten/cpu/ErrorWords.h"
#include "csrc/aten/cpu/KernelWarnings.h"
#include "csrc/aten/cpu/TrialRun.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using OptionalGenerator = std::optional<Generator>;

// A generator whose numbers are discarded.
const Generator& scratchGenerator() {
  static thread_local const Generator generator = at::detail::createCPUGenerator();
  return generator;
}

// A fill with invalid parameters or an unsupported dtype must fail at the call. The kernel makes
// these checks, so it first fills one element on the calling thread. A tensor without elements can
// have any dtype, as the kernel then checks less.
template <c10::openreg::KernelName Name, auto Kernel>
struct RandomFill;

template <c10::openreg::KernelName Name, typename... Args, Tensor& (*Kernel)(Tensor&, Args...)>
struct RandomFill<Name, Kernel> {
  static Tensor& call(Tensor& self, Args... args) {
    at::assert_no_internal_overlap(self);
    Tensor one = dummy(self.scalar_type(), {std::min<int64_t>(self.numel(), 1)});
    {
      const WarningRecorder recorder(WarningRecorder::Mode::Forward);
      inOwnWords([&] { Kernel(one, withoutDevice<std::decay_t<Args>>(args)...); });
    }
    return InPlace<Name, Kernel>::call(self, args...);
  }

 private:
  // Replaces a tensor by one CPU element; other arguments stay unchanged.
  template <typename T>
  static std::decay_t<T> withoutDevice(const T& argument) {
    if constexpr (std::is_same_v<T, OptionalGenerator>) {
      return scratchGenerator();
    } else if constexpr (std::is_same_v<T, Tensor>) {
      return dummy(argument.scalar_type(), {});
    } else {
      return argument;
    }
  }
};

// A random permutation of 0 to n - 1. Has a kernel, because the fallback would wait for each new n.
Tensor& randomPermutation(int64_t n, OptionalGenerator generator, Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  Tensor on_cpu = dummy(out.scalar_type(), {0});
  at::native::check_supported_max_int_with_precision(n, on_cpu);
  // Throws if the dtype is not supported.
  inOwnWords([&] { at::cpu::randperm_outf(1, scratchGenerator(), on_cpu); });
  out.resize_({n});
  if (n == 0) {
    return out;  // needs no generator, so that of another device type is allowed
  }
  enqueue<"aten::randperm.generator_out">(
      out.device(),
      [](Tensor& result, int64_t count, const OptionalGenerator& engine) {
        at::cpu::randperm_outf(count, engine, result);
      },
      out, n, generator);
  return out;
}

using RandomRange = Tensor& (*)(Tensor&, int64_t, std::optional<int64_t>, OptionalGenerator);
using RandomTo = Tensor& (*)(Tensor&, int64_t, OptionalGenerator);
using Random = Tensor& (*)(Tensor&, OptionalGenerator);
using TwoParameters = Tensor& (*)(Tensor&, double, double, OptionalGenerator);
using OneParameter = Tensor& (*)(Tensor&, double, OptionalGenerator);
using TensorParameter = Tensor& (*)(Tensor&, const Tensor&, OptionalGenerator);

Tensor& bernoulliOfTensor(Tensor& self, const Tensor& p, OptionalGenerator generator) {
  at::expand_inplace(self, p, "bernoulli_");
  return RandomFill<"aten::bernoulli_.Tensor", TensorParameter(&at::cpu::bernoulli_)>::call(
      self, p, std::move(generator));
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("normal_", &RandomFill<"aten::normal_", TwoParameters(&at::cpu::normal_)>::call);
  m.impl("uniform_", &RandomFill<"aten::uniform_", TwoParameters(&at::cpu::uniform_)>::call);
  m.impl("cauchy_", &RandomFill<"aten::cauchy_", TwoParameters(&at::cpu::cauchy_)>::call);
  m.impl("log_normal_",
         &RandomFill<"aten::log_normal_", TwoParameters(&at::cpu::log_normal_)>::call);
  m.impl("exponential_",
         &RandomFill<"aten::exponential_", OneParameter(&at::cpu::exponential_)>::call);
  m.impl("geometric_", &RandomFill<"aten::geometric_", OneParameter(&at::cpu::geometric_)>::call);
  m.impl("bernoulli_.float",
         &RandomFill<"aten::bernoulli_.float", OneParameter(&at::cpu::bernoulli_)>::call);
  m.impl("bernoulli_.Tensor", TORCH_FN(bernoulliOfTensor));
  m.impl("randperm.generator_out", TORCH_FN(randomPermutation));
  m.impl("random_", &RandomFill<"aten::random_", Random(&at::cpu::random_)>::call);
  m.impl("random_.to", &RandomFill<"aten::random_.to", RandomTo(&at::cpu::random_)>::call);
  m.impl("random_.from", &RandomFill<"aten::random_.from", RandomRange(&at::cpu::random_)>::call);
}

}  // namespace at::openreg
