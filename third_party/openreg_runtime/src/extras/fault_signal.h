// The signal of memory faults. As base/os.h in all else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace openreg::os {

enum class FaultAccess : uint8_t { Read, Write, Unknown };

struct Fault {
  uintptr_t address;
  FaultAccess access;
  void* machine;  // the ucontext_t
};

// Called for a memory fault. Returns whether the access can be retried. Must be async-signal-safe.
using FaultObserver = bool (*)(const Fault& fault);

// Installs the observer for all memory faults, before other handlers. Faults that it does not
// resolve are passed to the other handlers, the latest first. Must not be called concurrently;
// cheap if nothing has changed.
bool observe_faults(FaultObserver observer);

// Writes to the standard error stream. Async-signal-safe.
void write_error(const char* text, size_t size);

}  // namespace openreg::os
