// Waits for the threads of torch's autograd engine at the end of the process.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Functions.h"

namespace torch_openreg {
namespace {

// A backward pass without kernels. Its nodes run on the device's autograd thread, after all earlier
// work of that thread.
void runEmptyBackward(c10::Device device) {
  const c10::AutoGradMode enable_grad(true);
  const at::Tensor leaf = at::empty({0}, device).requires_grad_();
  leaf.view({0}).backward(at::empty({0}, device));
}

// Waits until the device's autograd thread has finished its earlier backward passes. Returns false
// on timeout, because a kernel may block the thread indefinitely.
bool waitForAutograd(int64_t device, double timeout_s) {
  auto done = std::make_shared<std::promise<bool>>();
  std::future<bool> has_run = done->get_future();
  const c10::Device one(c10::openreg::kDeviceType, c10::openreg::resolveDeviceIndex(device));
  // A separate thread, which can be abandoned and holds no Python state.
  std::thread([one, done] {
    try {
      runEmptyBackward(one);
      done->set_value(true);
    } catch (const std::exception&) {
      done->set_value(false);
    }
  }).detach();
  const auto timeout = std::chrono::duration<double>(timeout_s);
  return has_run.wait_for(timeout) == std::future_status::ready && has_run.get();
}

void bindAutograd(pybind11::module_& m) {
  m.def("_wait_for_autograd", &waitForAutograd, ReleaseGil());
}

const Bindings kAutogradBindings(&bindAutograd);

}  // namespace

}  // namespace torch_openreg
