// The memory accesses of a piece of work.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/Shadow.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {

struct MemoryAccess {
  Access access;
  uintptr_t storage;
  size_t storage_size;
  bool is_read = false;                      // besides being written, or only so
  bool is_filled = true;                     // a write stores defined contents
  std::shared_ptr<Allocation> allocation{};  // set by State::resolve()
  std::shared_ptr<const Work> captured{};    // for a replay
  bool is_unknown = false;                   // it counts as a read, and may have been a write
  bool is_traced = false;                    // a trace tells which bytes are read or written
};

Access accessOf(const Operand& operand);

// The accesses of a kernel to operands in device or pinned memory, in order.
std::vector<MemoryAccess> memoryAccessesOf(const char* kernel, ArrayRef<Operand> operands);

MemoryAccess memoryAccessOf(const void* address, size_t nbytes, bool is_written);

}  // namespace c10::openreg
