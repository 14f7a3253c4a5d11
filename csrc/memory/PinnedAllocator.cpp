#include "csrc/memory/PinnedAllocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <openreg/openreg.h>

#include <chrono>
#include <mutex>
#include <optional>

#include "csrc/core/CaptureMode.h"
#include "csrc/memory/BlockObserver.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {
namespace {

using c10::openreg::observe;
using c10::openreg::Observer;
using c10::openreg::OpenRegEvent;
using c10::openreg::OpenRegStream;

// Adds the microseconds of its lifetime to a statistic. The mutex is torch's, so clang cannot check
// it.
class Timer {
 public:
  Timer(std::mutex& mutex, c10::CachingAllocator::DurationStat& stat)
      : mutex_(mutex), stat_(stat) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    const auto duration = std::chrono::steady_clock::now() - begin_;
    const std::lock_guard<std::mutex> lock(mutex_);
    stat_.increase(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
  }

 private:
  std::mutex& mutex_;
  c10::CachingAllocator::DurationStat& stat_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// docs: pinned-allocator
// The device's functions for the shared cache.
struct PinnedAllocatorImpl final : at::CachingHostAllocatorImpl<OpenRegStream, OpenRegEvent> {
  using Block = at::HostBlock<OpenRegStream>;

 private:
  void allocate_host_memory(size_t size, void** pointer) override {
    const Timer timer(stats_.timing_mutex_, stats_.host_alloc_time);
    // As in RelaxedIfCapturing, but without creating a device.
    std::optional<c10::openreg::RelaxedCaptureGuard> relaxed;
    if (current_stream_is_capturing_fast_path()) {
      relaxed.emplace();
    }
    c10::openreg::prepareBlockObserver();
    OPENREG_CHECK(orMallocHost(pointer, size));
    if (c10::openreg::BlockObserver* observer = c10::openreg::blockObserver()) {
      observer->pinnedMemoryReserved(*pointer, size);
    }
  }

  // Called when the block's events have completed, with the cache's locks held: a wait for other
  // work could last for ever.
  void free_block(Block* block) override {
    const Timer timer(stats_.timing_mutex_, stats_.host_free_time);
    const c10::openreg::RelaxedCaptureGuard relaxed;
    OPENREG_CHECK(orFreeHostUnused(block->ptr_));
  }

  void record_stream(std::optional<std::vector<OpenRegEvent>>& events,
                     OpenRegStream stream) override {
    OpenRegEvent event;
    event.record(stream);
    events->push_back(std::move(event));
  }

  bool query_event(OpenRegEvent& event) override {
    const c10::openreg::RelaxedCaptureGuard relaxed;
    return event.isComplete();
  }

  OpenRegStream get_current_stream() const override {
    return c10::openreg::getCurrentOpenRegStream();
  }

  bool stream_is_capturing(OpenRegStream stream) const override { return stream.isCapturing(); }
};
// docs: end

void freePinned(void* context);

struct PinnedAllocator final : at::CachingHostAllocatorInterface<PinnedAllocatorImpl, &freePinned> {
  at::DataPtr allocate(size_t size) override {
    at::DataPtr data = CachingHostAllocatorInterface::allocate(size);
    if (data) {
      observe(&Observer::pinnedAllocation, data.get(), size);
    }
    return data;
  }
};

// Leaked, because tensors may be freed by static destructors.
PinnedAllocator& pinnedAllocator() {
  static PinnedAllocator* instance = new PinnedAllocator();
  return *instance;
}

void freePinned(void* context) {
  // A forked child inherits tensors, but the events that guard their reuse belong to the parent.
  if (!c10::openreg::isInBadFork()) {
    if (context != nullptr) {
      observe(&Observer::pinnedDeallocation,
              static_cast<PinnedAllocatorImpl::Block*>(context)->ptr_);
    }
    pinnedAllocator().free(context);
  }
}

struct PinnedAllocatorRegistration {
  PinnedAllocatorRegistration() {
    at::setHostAllocator(c10::openreg::kDeviceType, &pinnedAllocator(),
                         c10::openreg::kRegistrationPriority);
  }
} registration;

// Whether the runtime took the memory. Errors other than an unsuitable address are thrown.
bool isAccepted(orError_t error, const char* function) {
  if (error == orErrorInvalidValue) {
    static_cast<void>(orGetLastError());
    return false;
  }
  OPENREG_CHECK_RESULT(error, function);
  return true;
}

}  // namespace

bool registerHostMemory(size_t address, size_t size) {
  return isAccepted(orHostRegister(reinterpret_cast<void*>(address), size), "orHostRegister");
}

bool unregisterHostMemory(size_t address) {
  return isAccepted(orHostUnregister(reinterpret_cast<void*>(address)), "orHostUnregister");
}

bool isPinnedPointer(const void* pointer) {
  orPointerAttributes attributes;
  OPENREG_CHECK(orPointerGetAttributes(&attributes, pointer));
  return attributes.type == orMemoryTypeHost;
}

}  // namespace at::openreg
