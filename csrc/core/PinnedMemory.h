// What the backend tells the sanitizer of streams about pinned memory, besides the copies from and
// to it, which recordAccesses() tells. What holds for the functions of core/Sanitizer.h holds here.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>

#include "torch_openreg/core/Sanitizer.h"

namespace c10::openreg {

// The cache of pinned memory has given a block out, or takes it back. It has seen that the copies
// of a block's earlier life are over.
void notePinnedAllocated(const void* address, size_t size);
void notePinnedFreed(const void* address) noexcept;

// A copy from or to the pinned memory that the address is in has been launched, and the host may go
// on before it is over.
void notePinnedCopied(const void* address);

// The host is about to read or write memory, in an operator of the CPU.
// Errors: as recordAccesses(); the operator is then not called.
void recordHostAccesses(const char* kernel, ArrayRef<Operand> operands);

}  // namespace c10::openreg
