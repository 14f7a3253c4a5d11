// Step 3 of docs/bring_up.md, device memory. In full: csrc/memory/DeviceCachingAllocator.cpp, which
// also splits blocks, and gives statistics of each kind.
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "Event.h"

namespace chip {

// docs: minimal-allocator
// A freed block is given out again on the stream that it was allocated for, where later work comes
// after all that used it. If record_stream() named other streams, their events have to complete
// first. The mutex is never held while the driver waits, as another thread may have it and want
// the GIL.
class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const c10::DeviceIndex device = current_device();
    void* memory = size == 0 ? nullptr : allocateBlock(currentStream(device), roundUp(size));
    return {memory, memory, raw_deleter(), c10::Device(kType, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deleteBlock; }
  void copy_data(void* to, const void* from, size_t size) const override {
    wait([&] { return orMemcpy(to, from, size, orMemcpyDefault); });
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = live_.find(data.get());
    if (found != live_.end() && found->second.stream != stream) {
      found->second.users.push_back(stream);
    }
  }
  void emptyCache(c10::MempoolId_t) override {
    std::unique_lock<std::mutex> lock(mutex_);
    reclaim();
    const auto unused = std::exchange(free_, {});
    for (const auto& [key, blocks] : unused) {
      statsOf(std::get<0>(key)).reserved_bytes[0].decrease(std::get<2>(key) * blocks.size());
    }
    lock.unlock();
    for (const auto& [key, blocks] : unused) {
      for (void* memory : blocks) {
        wait([memory] { return orFree(memory); });
      }
    }
  }
  bool initialized() override { return true; }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t free = 0, total = 0;
    check(orMemGetInfo(&free, &total, device));
    return {free, total};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return statsOf(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    statsOf(device).allocated_bytes[0].reset_accumulated();
    statsOf(device).reserved_bytes[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    statsOf(device).allocated_bytes[0].reset_peak();
    statsOf(device).reserved_bytes[0].reset_peak();
  }

 private:
  struct Block {
    size_t size;
    c10::Stream stream;               // that it was allocated for
    std::vector<c10::Stream> users;   // others, by record_stream()
    std::vector<c10::Event> pending;  // once freed: when the users have done with it
  };

  static size_t roundUp(size_t size) { return (size + 511) / 512 * 512; }
  static void deleteBlock(void* memory);

  void* allocateBlock(const c10::Stream& stream, size_t size) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto& stats = statsOf(stream.device_index());
    reclaim();
    auto& unused = free_[{stream.device_index(), stream.id(), size}];
    void* memory = nullptr;
    if (!unused.empty()) {
      memory = unused.back();
      unused.pop_back();
    } else {
      lock.unlock();
      orError_t error = orMalloc(&memory, size);
      if (error == orErrorMemoryAllocation) {
        emptyCache({});
        error = orMalloc(&memory, size);
      }
      lock.lock();
      stats.num_ooms += error == orErrorMemoryAllocation;
      TORCH_CHECK_WITH(OutOfMemoryError, error != orErrorMemoryAllocation, kName,
                       ": out of memory: ", orGetLastErrorMessage());
      check(error);
      stats.reserved_bytes[0].increase(size);
    }
    stats.allocated_bytes[0].increase(size);
    live_.insert({memory, Block{size, stream, {}, {}}});
    return memory;
  }

  void free(void* memory) {
    std::unique_lock<std::mutex> lock(mutex_);
    Block block = std::move(live_.extract(memory).mapped());
    statsOf(block.stream.device_index()).allocated_bytes[0].decrease(block.size);
    lock.unlock();
    for (const c10::Stream& user : block.users) {
      block.pending.emplace_back(kType).record(user);
    }
    lock.lock();
    pending_.emplace_back(memory, std::move(block));
    reclaim();
  }

  void reclaim() {
    std::erase_if(pending_, [this](const auto& one) {
      const auto& [memory, block] = one;
      const bool is_done = std::all_of(block.pending.begin(), block.pending.end(), isComplete);
      if (is_done) {
        free_[{block.stream.device_index(), block.stream.id(), block.size}].push_back(memory);
      }
      return is_done;
    });
  }

  c10::CachingDeviceAllocator::DeviceStats& statsOf(c10::DeviceIndex device) {
    return stats_[device];
  }

  std::mutex mutex_;
  std::map<void*, Block> live_;
  std::vector<std::pair<void*, Block>> pending_;
  std::map<std::tuple<c10::DeviceIndex, c10::StreamId, size_t>, std::vector<void*>> free_;
  std::map<c10::DeviceIndex, c10::CachingDeviceAllocator::DeviceStats> stats_;
};

// Never destroyed: tensors may be freed while the process ends.
static DeviceAllocator& allocator = *new DeviceAllocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

void DeviceAllocator::deleteBlock(void* memory) {
  if (memory != nullptr && !isInBadFork()) {
    allocator.free(memory);
  }
}
// docs: end

}  // namespace chip
