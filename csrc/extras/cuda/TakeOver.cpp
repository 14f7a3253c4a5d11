// Takes the operators of device type CUDA over from a build of torch that has kernels for it.
//
// Note [Builds with CUDA]
// In a build of torch without CUDA, the dispatcher has no kernels for the keys of CUDA but ours,
// and an operator without one goes to ATen's composition or to the fallback. A build with CUDA has
// registered some two thousand kernels, which need a GPU. Each of these operators gets the kernel
// that it would have in the other build, before the library registers its own kernels, which come
// on top: the latest registration for a key is the one that is called. Nothing is removed; the
// dispatcher keeps a list per key.
//
// The other parts that a build with CUDA brings are taken over where ours are registered: the guard
// by being the later one, allocators and the timer of DistributedDataParallel by a higher priority,
// the hooks by Note [Place of the hooks]. torch_openreg/extras/cuda does the same for Python.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/fallback/LayoutFallback.h"
#include "csrc/aten/fallback/MixedDevices.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using c10::DispatchKey;

// The kernels of a namespace for a key. Leaked, because the end of a library removes its kernels.
using Libraries = std::map<std::pair<std::string, DispatchKey>, torch::Library*>;

// Namespaces whose kernels for CUDA are not of CUDA: c10d has one kernel for all devices, and
// _native has torch's own overrides in Triton, which Python takes away.
bool isKept(std::string_view ns) { return ns == "c10d" || ns == "_native"; }

// Calls an operator's kernel for an alias key.
class Composition : public c10::OperatorKernel {
 public:
  explicit Composition(DispatchKey alias) : alias_(alias) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) {
    op.callBoxedForDispatchKey(alias_, *stack);
  }

 private:
  const DispatchKey alias_;
};

// What the operator runs for tensors of a functionality if no build has a kernel for it.
torch::CppFunction kernelFor(const c10::OperatorHandle& op, DispatchKey functionality) {
  const bool is_strided = functionality == DispatchKey::Dense;
  if (!is_strided) {
    const DispatchKey of_cpu =
        c10::toRuntimePerBackendFunctionalityKey(functionality, c10::BackendComponent::CPUBit);
    if (auto kernel = layoutKernelFor(op, of_cpu)) {
      return std::move(*kernel);
    }
  }
  if (const std::optional<DispatchKey> alias = compositionOf(op, is_strided)) {
    return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Composition>(*alias));
  }
  return is_strided ? torch::CppFunction::makeFromBoxedFunction<&runFallback>() : layoutFallback();
}

// Whether autograd differentiates the parts of the operator's composition, as on the CPU, which has
// no kernel for it, either. The build has a formula for the whole, whose operators only CUDA has,
// and this backend for the operator of RmsNorm.cpp.
bool isDifferentiatedByParts(const c10::OperatorHandle& op) {
  return op.operator_name().name != "aten::_fused_rms_norm" &&
         !op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         compositionOf(op, true) == DispatchKey::CompositeImplicitAutograd;
}

DispatchKey keyOf(DispatchKey functionality) {
  return c10::toRuntimePerBackendFunctionalityKey(functionality, c10::openreg::backendComponent());
}

torch::Library& libraryOf(const std::string& ns, DispatchKey key, Libraries& libraries) {
  torch::Library*& library = libraries[{ns, key}];
  if (library == nullptr) {
    library = new torch::Library(torch::Library::IMPL, ns, key, __FILE__, __LINE__);
  }
  return *library;
}

void takeOver(DispatchKey functionality, Libraries& libraries) {
  const DispatchKey key = keyOf(functionality);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(key)) {
    const std::string ns(name.getNamespace().value_or(""));
    const auto op = dispatcher.findSchema(name);
    if (isKept(ns) || !op.has_value()) {
      continue;
    }
    const std::string full_name = c10::toString(name);
    libraryOf(ns, key, libraries).impl(full_name.c_str(), kernelFor(*op, functionality));
    if (functionality == DispatchKey::Dense && isDifferentiatedByParts(*op)) {
      libraryOf(ns, keyOf(DispatchKey::AutogradFunctionality), libraries)
          .impl(full_name.c_str(), kernelFor(*op, functionality));
    }
  }
}

// The dispatcher warns of the first kernel that replaces another, once in a process.
class WithoutWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

struct TakeOver {
  TakeOver() {
    if (!c10::openreg::servesCuda()) {
      return;
    }
    WithoutWarnings handler;
    const c10::WarningUtils::WarningHandlerGuard guard(&handler);
    Libraries libraries;
    for (const DispatchKey functionality :
         {DispatchKey::Dense, DispatchKey::Sparse, DispatchKey::SparseCsr, DispatchKey::Quantized,
          DispatchKey::NestedTensor}) {
      takeOver(functionality, libraries);
    }
  }
};

// Before all registrations of this library, which have the default priority.
constexpr int kBeforeRegistrations = 1000;
[[gnu::init_priority(kBeforeRegistrations)]] const TakeOver take_over;

}  // namespace
}  // namespace at::openreg
