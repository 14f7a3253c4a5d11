// Whether the host may access pinned memory at its own addresses.
#pragma once

#include <atomic>

namespace c10::openreg {

namespace detail {
inline std::atomic<bool> is_pinned_memory_protected{false};
}  // namespace detail

// Whether pages of pinned memory may be protected now, so that an access by the host is noticed.
// The backend then uses the addresses of kernels, which are never protected.
inline bool isPinnedMemoryProtected() noexcept {
  return detail::is_pinned_memory_protected.load(std::memory_order_relaxed);
}

inline void setPinnedMemoryProtected(bool is_protected) noexcept {
  detail::is_pinned_memory_protected.store(is_protected);
}

}  // namespace c10::openreg
