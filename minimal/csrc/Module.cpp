// Step 1 of docs/bring_up.md, the extension. In full: csrc/python/Module.cpp.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/Operators.h"
#include "runtime/Functions.h"

namespace chip {
// docs: minimal-exit
// An empty backward pass on each device, which runs behind the earlier work of its autograd thread.
static void finishAutograd() {
  const c10::AutoGradMode enable_grad(true);
  for (DeviceIndex i = 0; i < device_count(); ++i) {
    const at::Tensor empty = at::empty({0}, Device(kType, i));
    empty.detach().requires_grad_().view({0}).backward(empty);
  }
}
// docs: end
}  // namespace chip

// Loading the library registers guard, allocators, hooks and operators. Python needs the rest.
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace chip;
  m.attr("NAME") = kName;
  m.def("_init", [] {
    at::globalContext().lazyInitDevice(kType);  // calls the hooks' init()
    torch::utils::register_fork_handler_for_device_init(kType);
  });
  m.def("_isInBadFork", &isInBadFork);
  m.def("_finish_autograd", &finishAutograd, pybind11::call_guard<pybind11::gil_scoped_release>());
  m.def("_get_device_count", &device_count);
  m.def("_fallback_stats", [] { return fallbackCounts().calls; });
  m.def("_fallback_copied_bytes", [] { return fallbackCounts().copied_bytes; });
  m.def("_get_default_generator", [](DeviceIndex device) {
    return at::globalContext().defaultGenerator(Device(kType, device));
  });
}
