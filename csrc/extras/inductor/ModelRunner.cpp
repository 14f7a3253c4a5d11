// Runs programs compiled by AOTInductor; see Note [Weights of compiled programs].

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/core/DeviceName.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"

namespace at::openreg {
namespace {

using torch::inductor::AOTIModelContainerRunner;

class ModelRunner final : public AOTIModelContainerRunner {
 public:
  ModelRunner(const std::string& library, size_t model_count, c10::DeviceIndex device,
              const std::string& folder, bool is_single_threaded)
      : AOTIModelContainerRunner(library, model_count, "mps:" + std::to_string(device), folder,
                                 is_single_threaded) {}

 private:
  std::vector<at::Tensor> run_impl(std::vector<AtenTensorHandle>& inputs, void* stream) override {
    if (stream != nullptr) {
      for (AtenTensorHandle input : inputs) {
        aoti_torch_delete_tensor_object(input);
      }
      TORCH_CHECK(
          false,
          "run: expected the current stream of the thread, got another one; make it current "
          "first");
    }
    return AOTIModelContainerRunner::run_impl(inputs, stream);
  }
};

std::unique_ptr<AOTIModelContainerRunner> createRunner(const std::string& library,
                                                       size_t model_count,
                                                       const std::string& device_name,
                                                       const std::string& folder,
                                                       const bool is_single_threaded) {
  // a type, or a type and an index, such as openreg:1
  const size_t colon = device_name.find(':');
  const c10::DeviceIndex device = c10::openreg::resolveDeviceIndex(
      colon == std::string::npos ? -1 : std::stoi(device_name.substr(colon + 1)));
  // The runtime allocates on the current device.
  const c10::DeviceGuard guard(c10::Device(c10::openreg::kDeviceType, device));
  return std::make_unique<ModelRunner>(library, model_count, device, folder, is_single_threaded);
}

[[maybe_unused]] const bool is_registered = [] {
  c10::openreg::registerByTypeName([](const std::string& type_name) {
    const torch::inductor::RegisterAOTIModelRunner registered(type_name, &createRunner);
  });
  return true;
}();

}  // namespace
}  // namespace at::openreg
