// Resizing of storages.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Gives a storage of this device type new memory, and copies as much of its contents as fits.
// torch's own resize_bytes_nocuda() supports only the device type PrivateUse1.
// Order: the copy is enqueued on the current stream of the storage's device; the old memory is
// reused after it.
// Errors: RuntimeError if the storage is not resizable.
OPENREG_EXPORT void resizeStorage(const Storage& storage, size_t size_bytes);

}  // namespace c10::openreg
