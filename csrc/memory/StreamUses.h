// The streams that use the memory of a DataPtr.
#pragma once

#include <c10/core/Allocator.h>

#include <vector>

#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// The streams of a block of the caching allocator: the one for which it was allocated, and those
// named by record_stream. Empty for other memory.
std::vector<OpenRegStream> streamsOf(const DataPtr& data);

// Memory that another part of the backend wraps in a DataPtr.
struct ForeignMemory {
  DeleterFnPtr deleter = nullptr;  // identifies the memory
  // Implements record_stream for such a DataPtr.
  void (*record_stream)(void* context, const OpenRegStream& stream) = nullptr;
};

// There is one kind. Set by a static initializer while the library is loaded.
ForeignMemory& foreignMemory();

}  // namespace c10::openreg
