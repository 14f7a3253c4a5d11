#include "csrc/memory/Allocator.h"

#include <openreg/openreg.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/Mutex.h"
#include "csrc/memory/AllocatorSettings.h"
#include "csrc/memory/BlockObserver.h"
#include "csrc/memory/BlockTable.h"
#include "csrc/memory/DeviceCachingAllocator.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {
namespace {

void freeBlock(void* context);

// Note [DataPtr contexts]
// The context of a DataPtr of this allocator is its address, by which the block is found in the
// table of blocks; the deleter freeBlock identifies such a DataPtr. A DataPtr with another deleter
// was not allocated here; it may belong to another part of the backend, see foreignMemory().
class OpenRegAllocator final : public DeviceAllocator {
 public:
  DataPtr allocate(size_t size) override {
    const OpenRegStream stream = getCurrentOpenRegStream();
    const Device owner(kDeviceType, stream.device_index());
    if (size == 0) {
      return DataPtr(nullptr, nullptr, &freeBlock, owner);
    }
    Block* block = allocate(size, stream);
    return DataPtr(block->address, block->address, &freeBlock, owner);
  }

  // `size` must be greater than 0.
  Block* allocate(size_t size, const OpenRegStream& stream) {
    Block* block = cacheOf(stream.device_index()).allocate(size, stream);
    try {
      blocks_.add(block);
    } catch (...) {
      cacheOf(block->device).free(block);
      throw;
    }
    report(block->device, block->address, static_cast<int64_t>(block->size));
    return block;
  }

  DeleterFnPtr raw_deleter() const override { return &freeBlock; }

  // Address and context are the same, but copy-on-write would replace the deleter freeBlock, by
  // which recordStream() identifies the block.
  bool is_simple_data_ptr(const DataPtr& /*data*/) const override { return false; }

  void copy_data(void* destination, const void* source, size_t size) const override {
    const OpenRegStream stream = getCurrentOpenRegStream();
    if (observe(&Observer::byteCopy, stream, "aten::clone", destination, source, size) ==
        Verdict::Run) {
      OPENREG_CHECK(
          orMemcpyAsync(destination, source, size, orMemcpyDeviceToDevice, stream.stream()));
    }
  }

  // Always true if there is a device: torch calls this before it checks a device index, and no
  // function needs initialization.
  bool initialized() override { return device_count() > 0; }

  void emptyCache(MempoolId_t pool) override {
    observeShortage(&Observer::memoryShortage, DeviceIndex{-1});
    const BlockingRegion region;
    forEachActive([&](DeviceCachingAllocator& cache) { cache.emptyCache(pool); });
  }

  void recordStream(const DataPtr& data, Stream stream) override {
    if (Block* block = blockOf(data)) {
      cacheOf(block->device).recordStream(block, OpenRegStream(stream));
      return;
    }
    const ForeignMemory& foreign = foreignMemory();
    if (data.get_deleter() == foreign.deleter && data.get_context() != nullptr) {
      foreign.record_stream(data.get_context(), OpenRegStream(stream));
    }
  }

  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return cacheOf(resolveDeviceIndex(device)).locked([](BlockCache& blocks) {
      return blocks.statistics().all();
    });
  }

  void resetAccumulatedStats(DeviceIndex device) override {
    // A device that was never used has nothing to reset, and this must not create it.
    if (const DeviceIndex index = resolveDeviceIndex(device); isDeviceActive(index)) {
      cacheOf(index).locked([](BlockCache& blocks) { blocks.statistics().resetAccumulated(); });
    }
  }

  void resetPeakStats(DeviceIndex device) override {
    if (const DeviceIndex index = resolveDeviceIndex(device); isDeviceActive(index)) {
      cacheOf(index).locked([](BlockCache& blocks) { blocks.statistics().resetPeak(); });
    }
  }

  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    std::pair<size_t, size_t> free_and_total;
    OPENREG_CHECK(
        orMemGetInfo(&free_and_total.first, &free_and_total.second, resolveDeviceIndex(device)));
    return free_and_total;
  }

  // The block of a DataPtr; null if it has none or was not allocated here.
  Block* blockOf(const DataPtr& data) const noexcept {
    return data.get_deleter() == &freeBlock ? blocks_.find(data.get_context()) : nullptr;
  }

  void free(void* pointer) noexcept {
    // A forked child inherits tensors, but must not free the parent's device memory.
    if (isInBadFork()) {
      return;
    }
    Block* block = blocks_.take(pointer);
    if (block == nullptr) {
      std::fprintf(stderr,
                   "openreg: raw_deallocate: expected an address that the allocator returned and "
                   "that has not been freed, got %p\n",
                   pointer);
      return;
    }
    // Freeing may merge and delete the block.
    const DeviceIndex device = block->device;
    void* address = block->address;
    const auto size = static_cast<int64_t>(block->size);
    cacheOf(device).free(block);
    report(device, address, -size);
  }

  // Visits the caches of the devices in use.
  template <typename Visit>
  void forEachActive(Visit&& visit) {
    for (DeviceIndex device = 0; device < device_count(); ++device) {
      if (isDeviceActive(device)) {
        visit(cacheOf(device));
      }
    }
  }

  DeviceCachingAllocator& cacheOf(DeviceIndex device) {
    Cache& cache = caches_[device];
    DeviceCachingAllocator* found = cache.allocator.load(std::memory_order_acquire);
    if (C10_LIKELY(found != nullptr)) {
      return *found;
    }
    checkAllocatorSettings();
    prepareBlockObserver();
    std::call_once(cache.created, [&] {
      auto made = std::make_unique<DeviceCachingAllocator>(device);
      if (const double fraction = initialMemoryFraction(); fraction < 1) {
        made->locked([&](BlockCache& blocks) { blocks.setMemoryFraction(fraction); });
      }
      cache.allocator.store(made.release(), std::memory_order_release);
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
      const auto [allocated, reserved] = cacheOf(device).locked([](BlockCache& blocks) {
        return std::pair(blocks.statistics().allocatedBytes(), blocks.statistics().reservedBytes());
      });
      c10::reportMemoryUsageToProfiler(address, size, allocated, reserved,
                                       Device(kDeviceType, device));
    }
  }

  std::array<Cache, OPENREG_MAX_DEVICES> caches_;
  BlockTable blocks_;
};

// Leaked, because tensors may be freed by static destructors.
OpenRegAllocator& allocator() {
  static OpenRegAllocator* instance = new OpenRegAllocator();
  return *instance;
}

void freeBlock(void* context) {
  if (context != nullptr) {
    allocator().free(context);
  }
}

struct AllocatorRegistration {
  AllocatorRegistration() { c10::SetAllocator(kDeviceType, &allocator(), kRegistrationPriority); }
} allocator_registration;

// Calls a function with a device's blocks, under their lock.
template <typename Function>
auto withBlocks(DeviceIndex device, const Function& function) {
  return allocator().cacheOf(device).locked(function);
}

// The addresses that rawAllocate() returned.
struct RawBlocks {
  Mutex mutex;
  std::unordered_set<void*> live OPENREG_GUARDED_BY(mutex);
};

RawBlocks& rawBlocks() {
  static RawBlocks* instance = new RawBlocks;
  return *instance;
}

}  // namespace

void* rawAllocate(size_t size, const OpenRegStream& stream) {
  if (size == 0) {
    return nullptr;
  }
  Block* block = allocator().allocate(size, stream);
  RawBlocks& blocks = rawBlocks();
  const Lock lock(blocks.mutex);
  blocks.live.insert(block->address);
  return block->address;
}

void rawFree(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  bool is_live = false;
  {
    RawBlocks& blocks = rawBlocks();
    const Lock lock(blocks.mutex);
    is_live = blocks.live.erase(pointer) != 0;
  }
  TORCH_CHECK_VALUE(is_live, "caching_allocator_delete: expected an address that ",
                    "caching_allocator_alloc returned and that is not deleted, got ", pointer);
  allocator().free(pointer);
}

void setMemoryFraction(DeviceIndex device, double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1,
                    "set_per_process_memory_fraction: expected a fraction from 0 to 1, got ",
                    fraction);
  withBlocks(device, [&](BlockCache& blocks) { blocks.setMemoryFraction(fraction); });
}

double memoryFraction(DeviceIndex device) {
  return withBlocks(device, [](BlockCache& blocks) { return blocks.memoryFraction(); });
}

MempoolId_t createPoolId(bool by_user) {
  static std::atomic<CaptureId_t> last{0};
  const CaptureId_t number = ++last;
  return by_user ? MempoolId_t{0, number} : MempoolId_t{number, 0};
}

void releasePool(DeviceIndex device, MempoolId_t id) {
  withBlocks(device, [&](BlockCache& blocks) { blocks.releasePool(id); });
}

void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                         std::function<bool(const OpenRegStream&)> filter) {
  withBlocks(device,
             [&](BlockCache& blocks) { blocks.beginAllocateToPool(id, std::move(filter)); });
}

void endAllocateToPool(DeviceIndex device, MempoolId_t id) {
  withBlocks(device, [&](BlockCache& blocks) { blocks.endAllocateToPool(id); });
}

MemPool::MemPool(PoolOptions options)
    : device_(current_device()), id_(createPoolId(/*by_user=*/true)) {
  withBlocks(device_, [&](BlockCache& blocks) { blocks.createPool(id_, options); });
}

MemPool::~MemPool() {
  if (isInBadFork()) {
    return;
  }
  try {
    releasePool(device_, id_);
    if (useCount() == 0) {
      // Its addresses need not be kept, unlike a graph's.
      const BlockingRegion region;
      allocator().cacheOf(device_).emptyCache(id_);
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "openreg: a memory pool's memory stays reserved: %s\n",
                 error.what_without_backtrace());
  }
}

int MemPool::useCount() const {
  return withBlocks(device_, [this](BlockCache& blocks) { return blocks.poolUseCount(id_); });
}

void beginAllocateOnThread(int64_t device, MempoolId_t pool) {
  const std::thread::id thread = std::this_thread::get_id();
  beginAllocateToPool(resolveDeviceIndex(device), pool, [thread](const OpenRegStream&) {
    return std::this_thread::get_id() == thread;
  });
}

void endAllocateOnThread(int64_t device, MempoolId_t pool) {
  endAllocateToPool(resolveDeviceIndex(device), pool);
  releasePool(resolveDeviceIndex(device), pool);
}

std::vector<CachingDeviceAllocator::SegmentInfo> memorySnapshot(MempoolId_t pool) {
  std::vector<CachingDeviceAllocator::SegmentInfo> all;
  allocator().forEachActive([&](DeviceCachingAllocator& cache) {
    auto segments = cache.locked([&](BlockCache& blocks) { return blocks.snapshot(pool); });
    std::move(segments.begin(), segments.end(), std::back_inserter(all));
  });
  return all;
}

void recordMemoryHistory(const HistorySettings& settings, bool clears) {
  setHistorySettings(settings);
  if (clears || !settings.is_enabled) {
    allocator().forEachActive([](DeviceCachingAllocator& cache) {
      cache.locked([](BlockCache& blocks) { blocks.history().clear(); });
    });
  }
}

std::vector<MemoryHistory::TraceEntry> memoryHistory(DeviceIndex device) {
  return withBlocks(device, [](BlockCache& blocks) { return blocks.history().entries(); });
}

void forEachBlock(const std::function<void(const Block&)>& function) {
  allocator().forEachActive([&](DeviceCachingAllocator& cache) {
    cache.locked([&](BlockCache& blocks) { blocks.forEachBlock(function); });
  });
}

void finishPendingFrees() {
  allocator().forEachActive([](DeviceCachingAllocator& cache) { cache.finishPendingFrees(); });
}

bool isAllocatorValid(DeviceIndex device) {
  return withBlocks(device, [](BlockCache& blocks) { return blocks.isValid(); });
}

std::vector<OpenRegStream> streamsOf(const DataPtr& data) {
  Block* block = allocator().blockOf(data);
  return block == nullptr ? std::vector<OpenRegStream>()
                          : allocator().cacheOf(block->device).streamsOf(block);
}

ForeignMemory& foreignMemory() {
  static ForeignMemory foreign;
  return foreign;
}

}  // namespace c10::openreg
