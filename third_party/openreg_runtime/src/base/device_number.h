// The numbers of devices: which are visible, and which one is current for a thread.
#pragma once

#include "base/error.h"

namespace openreg {

int visible_device_count();

// The calling thread's current device; not checked.
int current_device();
void set_current_device(int index);

// Fails unless the number is that of a visible device. Checks the settings first.
orError_t check_device(int index, const char* function);

}  // namespace openreg
