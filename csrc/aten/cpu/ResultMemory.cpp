#include "csrc/aten/cpu/ResultMemory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <utility>

#include "csrc/aten/cpu/SymbolInterposer.h"

namespace at::openreg {
namespace {

// The object that offers memory on this thread.
thread_local ResultMemory* current = nullptr;

// The CPU's allocator for a thread with offers. A storage keeps its allocator for later resizes, so
// the allocator must also work when there are no offers.
class PlacingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (current != nullptr && nbytes > 0) {
      if (void* data = current->take(nbytes)) {
        return {data, c10::Device(c10::kCPU)};  // without a context: not freed
      }
    }
    return c10::GetCPUAllocator()->allocate(nbytes);
  }

  // Null: this allocator returns no memory without an owner. libtorch_cpu calls raw_allocate() in
  // kernels for oneDNN's scratch memory, but on c10::GetAllocator(), which is not redirected.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return c10::GetCPUAllocator()->is_simple_data_ptr(data);
  }

  void copy_data(void* destination, const void* source, size_t nbytes) const override {
    default_copy_data(destination, source, nbytes);
  }
};

c10::Allocator* cpuAllocatorOfThread() {
  static auto* placing = new PlacingAllocator;
  return C10_UNLIKELY(current != nullptr) ? placing : c10::GetCPUAllocator();
}

// Redirects libtorch_cpu's function that returns the CPU's allocator, from the first offer on. If
// that is impossible, offers are not used.
void enableOffers() {
  [[maybe_unused]] static const bool is_enabled =
      redirectTorch("_ZN3c1015GetCPUAllocatorEv", reinterpret_cast<void*>(&cpuAllocatorOfThread));
}

}  // namespace

ResultMemory::ResultMemory() : outer_(std::exchange(current, this)) { enableOffers(); }

ResultMemory::~ResultMemory() { current = outer_; }

void* ResultMemory::take(size_t nbytes) {
  Offer* found = findFree(nbytes);
  if (found == nullptr) {
    return nullptr;
  }
  found->is_taken = true;
  return found->data;
}

// The first free offer of that size; null if there is none.
ResultMemory::Offer* ResultMemory::findFree(size_t nbytes) {
  if (C10_LIKELY(offers_.size() <= kShortList)) {
    auto* const found = std::find_if(offers_.begin(), offers_.end(), [&](const Offer& offer) {
      return !offer.is_taken && offer.nbytes == nbytes;
    });
    return found == offers_.end() ? nullptr : found;
  }
  if (first_of_size_.empty()) {
    for (size_t i = offers_.size(); i > 0; --i) {
      offers_[i - 1].next_alike = std::exchange(first_of_size_[offers_[i - 1].nbytes], i);
    }
  }
  const auto first = first_of_size_.find(nbytes);
  if (first == first_of_size_.end() || first->second == 0) {
    return nullptr;
  }
  Offer& offer = offers_[first->second - 1];
  first->second = offer.next_alike;
  return &offer;
}

}  // namespace at::openreg
