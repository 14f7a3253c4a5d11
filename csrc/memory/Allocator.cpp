#include "csrc/memory/Allocator.h"

#include <openreg/openreg.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/Exception.h"
#include "csrc/core/Functions.h"
#include "csrc/memory/DeviceCachingAllocator.h"
#include "csrc/memory/StreamUses.h"

namespace c10::openreg {
namespace {

void freeBlock(void* context);

// Note [DataPtr contexts]
// The context of our DataPtrs is the Block, and the deleter freeBlock tells that it is one. A
// DataPtr with another deleter is not from here: registerForeignMemory() tells whose it is, if it
// is the backend's at all.
class OpenRegAllocator final : public DeviceAllocator {
 public:
  DataPtr allocate(size_t size) override {
    const DeviceIndex device = currentDevice();
    const Device owner(kDeviceType, device);
    if (size == 0) {
      return DataPtr(nullptr, nullptr, &freeBlock, owner);
    }
    DeviceCachingAllocator& cache = cacheOf(device);
    Block* block = cache.allocate(size, getCurrentOpenRegStream(device));
    report(device, block->address, static_cast<int64_t>(block->size));
    return DataPtr(block->address, block, &freeBlock, owner);
  }

  // A raw pointer could not be traced back to its block; see Note [DataPtr contexts].
  DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* destination, const void* source, size_t size) const override {
    OPENREG_CHECK(orMemcpyAsync(destination, source, size, orMemcpyDeviceToDevice,
                                getCurrentOpenRegStream().handle()));
  }

  bool initialized() override {
    for (DeviceIndex device = 0; device < deviceCount(); ++device) {
      if (isDeviceActive(device)) {
        return true;
      }
    }
    return false;
  }

  void emptyCache(MempoolId_t pool) override {
    TORCH_CHECK(pool == MempoolId_t({0, 0}), "empty_cache: expected the default pool, got pool (",
                pool.first, ", ", pool.second, ")");
    const BlockingRegion region;
    for (DeviceIndex device = 0; device < deviceCount(); ++device) {
      if (isDeviceActive(device)) {
        cacheOf(device).emptyCache();
      }
    }
  }

  void recordStream(const DataPtr& data, Stream stream) override {
    if (data.get_deleter() == &freeBlock && data.get_context() != nullptr) {
      auto* block = static_cast<Block*>(data.get_context());
      cacheOf(block->device).recordStream(block, OpenRegStream(stream));
      return;
    }
    const ForeignMemory& foreign = foreignMemory();
    if (data.get_deleter() == foreign.deleter && data.get_context() != nullptr) {
      foreign.record_stream(data.get_context(), OpenRegStream(stream));
    }
  }

  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return cacheOf(resolveDeviceIndex(device)).stats();
  }

  void resetAccumulatedStats(DeviceIndex device) override {
    cacheOf(resolveDeviceIndex(device)).resetAccumulatedStats();
  }

  void resetPeakStats(DeviceIndex device) override {
    cacheOf(resolveDeviceIndex(device)).resetPeakStats();
  }

  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    std::pair<size_t, size_t> free_and_total;
    OPENREG_CHECK(
        orMemGetInfo(&free_and_total.first, &free_and_total.second, resolveDeviceIndex(device)));
    return free_and_total;
  }

  void free(Block* block) noexcept {
    // A forked child inherits tensors; the parent's device memory is not its to free.
    if (isInBadFork()) {
      return;
    }
    // Freeing may merge the block away.
    const DeviceIndex device = block->device;
    void* address = block->address;
    const auto size = static_cast<int64_t>(block->size);
    cacheOf(device).free(block);
    report(device, address, -size);
  }

  DeviceCachingAllocator& cacheOf(DeviceIndex device) {
    Cache& cache = caches_[device];
    DeviceCachingAllocator* found = cache.allocator.load(std::memory_order_acquire);
    if (C10_LIKELY(found != nullptr)) {
      return *found;
    }
    std::call_once(cache.created, [&] {
      cache.allocator.store(new DeviceCachingAllocator(device), std::memory_order_release);
    });
    return *cache.allocator.load(std::memory_order_acquire);
  }

 private:
  struct Cache {
    std::once_flag created;
    std::atomic<DeviceCachingAllocator*> allocator{nullptr};
  };

  void report(DeviceIndex device, void* address, int64_t size) {
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
      const auto [allocated, reserved] = cacheOf(device).usage();
      c10::reportMemoryUsageToProfiler(address, size, allocated, reserved,
                                       Device(kDeviceType, device));
    }
  }

  std::array<Cache, OPENREG_MAX_DEVICES> caches_;
};

// Leaked: tensors may be freed by static destructors.
OpenRegAllocator& allocator() {
  static OpenRegAllocator* instance = new OpenRegAllocator();
  return *instance;
}

void freeBlock(void* context) {
  if (context != nullptr) {
    allocator().free(static_cast<Block*>(context));
  }
}

struct AllocatorRegistration {
  AllocatorRegistration() { c10::SetAllocator(kDeviceType, &allocator()); }
} registration;

}  // namespace

bool isAllocatorValid(DeviceIndex device) {
  return allocator().cacheOf(resolveDeviceIndex(device)).isValid();
}

std::vector<OpenRegStream> streamsOf(const DataPtr& data) {
  if (data.get_deleter() != &freeBlock || data.get_context() == nullptr) {
    return {};
  }
  auto* block = static_cast<Block*>(data.get_context());
  return allocator().cacheOf(block->device).streamsOf(block);
}

ForeignMemory& foreignMemory() {
  static ForeignMemory foreign;
  return foreign;
}

}  // namespace c10::openreg
