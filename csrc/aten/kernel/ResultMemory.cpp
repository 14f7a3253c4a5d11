#include "csrc/aten/kernel/ResultMemory.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <utility>

#include "csrc/aten/kernel/ImportTable.h"

namespace at::openreg {
namespace {

// Whoever offers memory on this thread.
thread_local ResultMemory* current = nullptr;

// The CPU's allocator for a thread with offers. Storages keep their allocator, to grow with it, so
// it goes on to serve them when the offers are gone.
class PlacingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (current != nullptr && nbytes > 0) {
      if (void* data = current->take(nbytes)) {
        return {data, c10::Device(c10::kCPU)};  // without a context: nobody frees it
      }
    }
    return c10::GetCPUAllocator()->allocate(nbytes);
  }

  // None: it has no memory without an owner. What libtorch_cpu asks raw_allocate() for in kernels,
  // the scratch memory of oneDNN, it takes from c10::GetAllocator(), which is not redirected.
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

// Lets libtorch_cpu ask us for the CPU's allocator, from the first offer on. Where that cannot be
// done, offers are not taken.
void enableOffers() {
  [[maybe_unused]] static const bool is_enabled =
      ImportTable(reinterpret_cast<const void*>(&at::globalContext))
          .redirect("_ZN3c1015GetCPUAllocatorEv", reinterpret_cast<void*>(&cpuAllocatorOfThread));
}

}  // namespace

ResultMemory::ResultMemory(c10::ArrayRef<TensorAlias> results) : outer_(current) {
  enableOffers();
  for (const TensorAlias& result : results) {
    offers_.push_back({result.storageData(), result.storageNbytes(), result.storageNbytes() == 0});
  }
  if (C10_UNLIKELY(offers_.size() > FirstPlaces<size_t>::kCompared)) {
    index();
  }
  current = this;
}

ResultMemory::~ResultMemory() { current = outer_; }

void ResultMemory::index() {
  is_indexed_ = true;
  for (size_t i = 0; i < offers_.size(); ++i) {
    if (offers_[i].is_taken) {
      continue;
    }
    places_.findOrAdd(offers_[i].data, i);
    const size_t place = sizes_.findOrAdd(offers_[i].nbytes, alike_.size());
    if (place == alike_.size()) {
      alike_.push_back({i, i});
    } else {
      offers_[alike_[place].last].next_alike = i;
      alike_[place].last = i;
    }
  }
}

void* ResultMemory::take(size_t nbytes) {
  Offer* found = findFree(nbytes);
  if (found == nullptr) {
    return nullptr;
  }
  found->is_taken = true;
  return found->data;
}

// The first of that size that is not taken, which then is for the caller; null if there is none.
ResultMemory::Offer* ResultMemory::findFree(size_t nbytes) {
  if (C10_UNLIKELY(is_indexed_)) {
    const auto place = sizes_.find(nbytes);
    if (!place.has_value() || alike_[*place].first == kNone) {
      return nullptr;
    }
    Offer& offer = offers_[alike_[*place].first];
    alike_[*place].first = offer.next_alike;
    return &offer;
  }
  while (first_free_ < offers_.size() && offers_[first_free_].is_taken) {
    ++first_free_;
  }
  auto* const found =
      std::find_if(offers_.begin() + first_free_, offers_.end(),
                   [&](const Offer& offer) { return !offer.is_taken && offer.nbytes == nbytes; });
  return found == offers_.end() ? nullptr : found;
}

bool ResultMemory::holds(const Tensor& tensor) const {
  const void* data = tensor.storage().data();
  if (C10_UNLIKELY(is_indexed_)) {
    const auto place = places_.find(data);
    return place.has_value() && offers_[*place].is_taken;
  }
  return std::any_of(offers_.begin(), offers_.end(), [&](const Offer& offer) {
    return offer.nbytes > 0 && offer.is_taken && data == offer.data;
  });
}

}  // namespace at::openreg
