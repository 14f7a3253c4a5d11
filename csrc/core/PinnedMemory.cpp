#include "csrc/core/PinnedMemory.h"

namespace c10::openreg {

std::atomic<bool> detail::is_pinned_memory_protected{false};

void setPinnedMemoryProtected(bool is_protected) noexcept {
  detail::is_pinned_memory_protected.store(is_protected);
}

}  // namespace c10::openreg
