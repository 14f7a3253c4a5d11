// Operators that fill a tensor with random numbers: the CPU's, in stream order.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/bernoulli_cpu_dispatch.h>
#include <ATen/ops/cauchy_cpu_dispatch.h>
#include <ATen/ops/exponential_cpu_dispatch.h>
#include <ATen/ops/geometric_cpu_dispatch.h>
#include <ATen/ops/log_normal_cpu_dispatch.h>
#include <ATen/ops/normal_cpu_dispatch.h>
#include <ATen/ops/random_cpu_dispatch.h>
#include <ATen/ops/uniform_cpu_dispatch.h>
#include <torch/library.h>

#include "torch_openreg/aten/KernelArguments.h"

namespace at::openreg {
namespace {

using OptionalGenerator = std::optional<Generator>;

// A fill with bad parameters must fail in the call. The kernel itself checks them, so it is run
// on no elements first, with a generator whose numbers nobody uses.
template <c10::openreg::KernelName Name, auto Kernel>
struct RandomFill;

template <c10::openreg::KernelName Name, typename... Args, Tensor& (*Kernel)(Tensor&, Args...)>
struct RandomFill<Name, Kernel> {
  static Tensor& call(Tensor& self, Args... args) {
    static thread_local const Generator scratch = at::detail::createCPUGenerator();
    Tensor none(at::detail::empty_cpu({0}, self.scalar_type()));
    Kernel(none, withGenerator(args, scratch)...);
    return InPlace<Name, Kernel>::call(self, args...);
  }

 private:
  template <typename T>
  static T withGenerator(T argument, const Generator& scratch) {
    if constexpr (std::is_same_v<T, OptionalGenerator>) {
      return scratch;
    } else {
      return argument;
    }
  }
};

using RandomRange = Tensor& (*)(Tensor&, int64_t, std::optional<int64_t>, OptionalGenerator);
using RandomTo = Tensor& (*)(Tensor&, int64_t, OptionalGenerator);
using Random = Tensor& (*)(Tensor&, OptionalGenerator);
using TwoParameters = Tensor& (*)(Tensor&, double, double, OptionalGenerator);
using OneParameter = Tensor& (*)(Tensor&, double, OptionalGenerator);
using TensorParameter = Tensor& (*)(Tensor&, const Tensor&, OptionalGenerator);

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
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
  m.impl("bernoulli_.Tensor",
         &InPlace<"aten::bernoulli_.Tensor", TensorParameter(&at::cpu::bernoulli_)>::call);
  m.impl("random_", &RandomFill<"aten::random_", Random(&at::cpu::random_)>::call);
  m.impl("random_.to", &RandomFill<"aten::random_.to", RandomTo(&at::cpu::random_)>::call);
  m.impl("random_.from", &RandomFill<"aten::random_.from", RandomRange(&at::cpu::random_)>::call);
}

}  // namespace at::openreg
