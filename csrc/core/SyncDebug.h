// Reports operators that make the host wait for a stream: torch.cuda.set_sync_debug_mode.
#pragma once

#include <cstdint>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

enum class SyncDebugMode : uint8_t { Silent, Warn, Error };

OPENREG_EXPORT SyncDebugMode syncDebugMode() noexcept;

// Affects all threads.
OPENREG_EXPORT void setSyncDebugMode(SyncDebugMode mode) noexcept;

// Call before an operator waits. Functions whose purpose is to wait do not call it.
// Errors: RuntimeError in the mode Error, before the wait.
OPENREG_EXPORT void reportSynchronization(const char* operation);

}  // namespace c10::openreg
