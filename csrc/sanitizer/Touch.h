// What a piece of work does to memory.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/sanitizer/AccessSet.h"
#include "csrc/sanitizer/Shadow.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {

struct Touch {
  Access access;
  uintptr_t storage;
  size_t storage_size;
  bool is_read = false;                      // besides being written, or only so
  bool is_filled = true;                     // if it is written: with something
  std::shared_ptr<Allocation> allocation{};  // once State::resolve() has found it
  std::shared_ptr<const Work> captured{};    // of a replay
};

Access accessOf(const Operand& operand);

// Of the operands of a kernel those that it touches here, in their order.
std::vector<Touch> touchesOf(const char* kernel, ArrayRef<Operand> operands);

Touch touchOf(const void* address, size_t nbytes, bool is_written);

}  // namespace c10::openreg
