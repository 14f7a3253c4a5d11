// Has the library serve the device type CUDA if the environment says so: see Note [Device type] in
// torch_openreg/core/DeviceKeys.h.
#include <cstdlib>
#include <string_view>

#include "csrc/aten/cpu/ErrorWords.h"
#include "csrc/extras/cuda/CudaForm.h"
#include "csrc/extras/cuda/CudaGenerator.h"
#include "csrc/extras/cuda/CudaMemory.h"
#include "csrc/extras/cuda/CudaTexts.h"

namespace at::openreg {
namespace {

constinit const CudaForm cuda_form;

struct Installation {
  Installation() {
    const char* asked = std::getenv("OPENREG_DEVICE_TYPE");
    if (asked == nullptr || std::string_view(asked) != cuda_form.choice()) {
      return;
    }
    c10::openreg::setDeviceForm(cuda_form);
    setErrorWords(&throwInWordsOfCuda);
    installCudaMemory();
    installCudaGenerator();
  }
};

[[gnu::init_priority(c10::openreg::kBeforeStaticObjects)]] const Installation installation;

}  // namespace
}  // namespace at::openreg
