#include "csrc/core/DeviceForm.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "csrc/core/DeviceName.h"
#include "torch_openreg/core/Functions.h"

namespace c10::openreg {
namespace {

class OwnForm final : public DeviceForm {};

constinit const OwnForm own_form;
constinit const DeviceForm* form_in_use = &own_form;

std::string forkText() {
  const char* device = deviceName();
  return c10::str("Cannot re-initialize ", device, " in forked subprocess. To use ", device,
                  " with multiprocessing, you must use the 'spawn' start method");
}

}  // namespace

const DeviceForm& deviceForm() noexcept { return *form_in_use; }

void setDeviceForm(const DeviceForm& form) noexcept { form_in_use = &form; }

const char* DeviceForm::name() const noexcept { return kDeviceName; }

const char* DeviceForm::choice() const noexcept { return kTypeName; }

const char* DeviceForm::errorText(orError_t error) const noexcept {
  return orGetErrorString(error);
}

std::string DeviceForm::describe(orError_t error, KernelExceptionTag /*tag*/,
                                 const char* raised_by) const {
  const std::string detail = orGetLastErrorMessage();
  std::string text = c10::str(name(), " error: ", errorText(error), " (", orGetErrorName(error),
                              ", code ", static_cast<int>(error), ")");
  if (!detail.empty()) {
    text += ": " + detail;
  }
  text += c10::str("\nRaised by ", raised_by, ".");
  if (error == orErrorLaunchFailure) {
    text +=
        "\nKernels run asynchronously, so the Python stack may point at a later call. For a "
        "stack that points at the failing one, set OPENREG_LAUNCH_BLOCKING=1.";
  }
  return text;
}

std::string DeviceForm::describeWarning(orError_t error, const char* raised_by) const {
  return describe(error, KernelExceptionTag::None, raised_by);
}

void DeviceForm::raise(orError_t error, SourceLocation location, std::string text) const {
  switch (error) {
    case orErrorMemoryAllocation:
      throw c10::OutOfMemoryError(location, std::move(text));
    case orErrorForked:
      throw c10::Error(location, forkText());
    case orErrorInvalidDevice:
      throw c10::Error(location, "The device index is out of range. " + text);
    default:
      throw c10::AcceleratorError(location, static_cast<int32_t>(error), std::move(text));
  }
}

void DeviceForm::refuseIndex(int64_t index) const {
  C10_THROW_ERROR(
      Error, c10::str("The device index is out of range. It must be in [0, ",
                      static_cast<int>(device_count()), "), but got ", index, ".",
                      index < 0 ? "" : " OPENREG_DEVICE_COUNT says how many devices there are."));
}

orError_t DeviceForm::codeOf(KernelExceptionTag /*tag*/) const noexcept {
  return orErrorLaunchFailure;
}

bool DeviceForm::isLasting(orError_t /*error*/, KernelExceptionTag /*tag*/) const noexcept {
  return false;
}

}  // namespace c10::openreg
