// The backend's reports about pinned memory to the sanitizer, besides copies, which
// recordAccesses() reports. The rules of core/Sanitizer.h apply.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>

#include "torch_openreg/core/Sanitizer.h"

namespace c10::openreg {

// The cache of pinned memory has handed out a block, or takes it back. Copies from the block's
// earlier use have ended.
void notePinnedAllocated(const void* address, size_t size);
void notePinnedFreed(const void* address) noexcept;

// A copy from or to the pinned memory that contains the address has been launched, and the host may
// continue before it ends.
void notePinnedCopied(const void* address);

// The host is about to read or write memory in an operator of the CPU.
// Errors: as recordAccesses(); the operator is then not called.
void recordHostAccesses(const char* kernel, ArrayRef<Operand> operands);

}  // namespace c10::openreg
