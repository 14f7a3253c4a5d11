// Memory that extras add to what allocation.cpp manages: pinned memory that can be watched
// (extras/watch.cpp), and memory of other processes (extras/peer.cpp). Both install their functions
// here, when the library is loaded; without them there is no such memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace openreg {

struct WatchableFunctions {
  // Allocates `size` > 0 bytes that read as zeros and can be watched; returns the host's address.
  // 0 if watching is off, or if such memory is not available.
  uintptr_t (*allocate)(size_t size);

  // Ends an allocation, and all watches of its bytes. Returns false, and does nothing, for other
  // addresses.
  bool (*release)(uintptr_t address, size_t size);

  // The offset from the host's address of watchable memory to the address that kernels use; 0 for
  // every other address.
  uintptr_t (*kernel_offset)(uintptr_t address);

  // Whether it is such a kernel address.
  bool (*is_kernel_address)(uintptr_t address);
};

struct ImportedAllocation {
  uintptr_t address;  // 0: the address lies in imported memory, but in nothing that is opened
  size_t size;
  int device;
  int process;
};

// What imported memory an address lies in.
using FindImportedFn = std::optional<ImportedAllocation> (*)(uintptr_t address);

extern WatchableFunctions watchable_memory;
extern FindImportedFn find_imported;

}  // namespace openreg
