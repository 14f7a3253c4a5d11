#include "torch_openreg/core/DeviceKeys.h"

#include <cstdlib>
#include <string_view>

namespace c10::openreg {

bool servesCuda() noexcept {
  static const bool serves_cuda = [] {
    const char* text = std::getenv("OPENREG_DEVICE_TYPE");
    return text != nullptr && std::string_view(text) == "cuda";
  }();
  return serves_cuda;
}

}  // namespace c10::openreg
