// Which streams use the memory behind a DataPtr.
#pragma once

#include <c10/core/Allocator.h>

#include <vector>

#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// The streams that memory of the caching allocator belongs to: the one it was allocated for, and
// those that record_stream named. Empty for other memory.
std::vector<OpenRegStream> streamsOf(const DataPtr& data);

// Memory that another part of the backend puts behind DataPtrs.
struct ForeignMemory {
  DeleterFnPtr deleter = nullptr;  // tells it from other memory
  // What record_stream does on such a DataPtr.
  void (*record_stream)(void* context, const OpenRegStream& stream) = nullptr;
};

// There is one kind. Set while the library is loaded, by a static initializer.
ForeignMemory& foreignMemory();

}  // namespace c10::openreg
