#include "base/device_number.h"

#include "base/setting.h"

namespace openreg {
namespace {

thread_local int this_threads_device = 0;

}  // namespace

int visible_device_count() { return static_cast<int>(settings().visible_devices.size()); }

int current_device() { return this_threads_device; }

void set_current_device(int index) { this_threads_device = index; }

orError_t check_device(int index, const char* function) {
  if (const orError_t error = check_settings()) return error;
  const int count = visible_device_count();
  if (index >= 0 && index < count) return orSuccess;
  if (count == 0) {
    return fail(orErrorNoDevice, concat(function, ": there is no device: ", no_device_text()));
  }
  return fail(orErrorInvalidDevice,
              concat(function, ": expected a device from 0 to ", count - 1, ", got ", index));
}

}  // namespace openreg
