// What happens when an operator makes the host wait for a stream: torch.cuda.set_sync_debug_mode.
#pragma once

#include <cstdint>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

enum class SyncDebugMode : uint8_t { Silent, Warn, Error };

OPENREG_EXPORT SyncDebugMode syncDebugMode() noexcept;

// For all threads.
OPENREG_EXPORT void setSyncDebugMode(SyncDebugMode mode) noexcept;

// Called where an operator is about to wait. Functions whose purpose is to wait do not call it.
// Errors: RuntimeError in the mode Error, before anything has waited.
OPENREG_EXPORT void noteSynchronization(const char* operation);

}  // namespace c10::openreg
