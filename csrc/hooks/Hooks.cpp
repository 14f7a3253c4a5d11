#include "csrc/hooks/Hooks.h"

namespace at::openreg {
namespace {

struct HooksRegistration {
  // Hooks that are registered make the device type torch's accelerator.
  HooksRegistration() {
    if (c10::openreg::kDeviceType == c10::DeviceType::PrivateUse1) {
      at::RegisterPrivateUse1HooksInterface(new OpenRegHooksInterface());
    }
  }
} hooks_registration;

}  // namespace
}  // namespace at::openreg
