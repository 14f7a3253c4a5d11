#include "memory/extra_memory.h"

namespace openreg {

// Constants, as the extras may replace them before or after this file's objects are made.
constinit WatchableFunctions watchable_memory{
    .allocate = [](size_t) { return uintptr_t{0}; },
    .release = [](uintptr_t, size_t) { return false; },
    .kernel_offset = [](uintptr_t) { return uintptr_t{0}; },
    .is_kernel_address = [](uintptr_t) { return false; },
};

constinit FindImportedFn find_imported = [](uintptr_t) -> std::optional<ImportedAllocation> {
  return std::nullopt;
};

}  // namespace openreg
