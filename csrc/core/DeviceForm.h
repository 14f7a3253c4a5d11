// How the device shows itself to programs: its device type, its name, and its errors.
//
// A part of the library that serves another device type than the backend's own derives from
// DeviceForm, and installs an object before other static objects are initialized: a function with
// the priority kBeforeStaticObjects, by setDeviceForm(). It holds for the process.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <openreg/error.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// The type of the exception that a kernel threw; the runtime passes it on as the error's tag.
enum class KernelExceptionTag : int {
  None = 0,
  Check,  // c10::Error itself
  Index,
  Value,
  Type,
  NotImplemented,
  LinAlg,
  OutOfMemory,
  Distributed,
};

// The functions of this class are those of the backend's own device type.
class OPENREG_EXPORT DeviceForm {
 public:
  constexpr DeviceForm() = default;
  DeviceForm(const DeviceForm&) = delete;
  DeviceForm& operator=(const DeviceForm&) = delete;

  virtual DeviceType type() const noexcept { return DeviceType::PrivateUse1; }

  // The name in texts for people, and the value of OPENREG_DEVICE_TYPE that asks for this form.
  virtual const char* name() const noexcept;
  virtual const char* choice() const noexcept;

  // The compute capability of the devices, such as "8.0", by which CUDA's rules differ.
  virtual std::string_view capability() const { return "8.0"; }

  // The description of an error.
  virtual const char* errorText(orError_t error) const noexcept;

  // The text of the exception for an error, with the message of the calling thread's last error.
  // `tag` is that of a kernel's exception.
  virtual std::string describe(orError_t error, KernelExceptionTag tag,
                               const char* raised_by) const;

  // The same for a warning.
  virtual std::string describeWarning(orError_t error, const char* raised_by) const;

  // Throws the exception for an error that is no kernel's exception of another type.
  [[noreturn]] virtual void raise(orError_t error, SourceLocation location, std::string text) const;

  // Throws for the index of a device that does not exist.
  [[noreturn]] virtual void refuseIndex(int64_t index) const;

  // The code of a kernel's exception, and whether an error of a kernel makes the device unusable.
  virtual orError_t codeOf(KernelExceptionTag tag) const noexcept;
  virtual bool isLasting(orError_t error, KernelExceptionTag tag) const noexcept;

 protected:
  ~DeviceForm() = default;
};

// The form in use.
OPENREG_EXPORT const DeviceForm& deviceForm() noexcept;

// For [[gnu::init_priority]]: before the static objects of the library, of which some depend on the
// form.
inline constexpr int kBeforeStaticObjects = 500;
void setDeviceForm(const DeviceForm& form) noexcept;

}  // namespace c10::openreg
