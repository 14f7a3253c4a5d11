// Step 3 of docs/bring_up.md, pinned host memory. In full: csrc/memory/PinnedAllocator.cpp.
#include <ATen/core/CachingHostAllocator.h>

#include "Event.h"

namespace chip {

// docs: minimal-host-allocator
// torch's own cache, which keeps a freed block until the copies from and to it have completed.
struct HostCache final : at::CachingHostAllocatorImpl<Stream, c10::Event> {
  void allocate_host_memory(size_t size, void** to) override { check(orMallocHost(to, size)); }
  void free_block(at::HostBlock<Stream>* block) override { check(orFreeHostUnused(block->ptr_)); }
  void record_stream(std::optional<std::vector<c10::Event>>& events, Stream stream) override {
    events->emplace_back(kType).record(stream);
  }
  bool query_event(c10::Event& event) override {  // an error is for those who wait
    int is_complete = 1;
    check(orEventIsComplete(&is_complete, handleOf(event.eventId())));
    return is_complete != 0;
  }
  Stream get_current_stream() const override { return currentStream(current_device()); }
  bool stream_is_capturing(Stream s) const override { return captureOf(s) != 0; }
};

static void freePinned(void* block);
using HostAllocator = at::CachingHostAllocatorInterface<HostCache, &freePinned>;
static HostAllocator& allocator = *new HostAllocator;  // never destroyed, as the device's

static void freePinned(void* block) {
  if (!isInBadFork()) allocator.free(block);
}

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);
// docs: end

}  // namespace chip
