// Step 3 of docs/bring_up.md, device memory. In full: csrc/memory/DeviceCachingAllocator.cpp, which
// also splits blocks, and does not let one stream wait for another.
#include <c10/core/CachingDeviceAllocator.h>

#include <tuple>

#include "Event.h"

namespace chip {

using c10::CachingAllocator::Stat;

// A freed block is given out again on the stream that it was allocated for, where later work comes
// after all that used it. If record_stream() named other streams, that stream waits for them first.
// The mutex is never held while the driver may wait: its owner may be waiting for the GIL.
class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t requested) override {
    const Stream stream = currentStream(current_device());
    const size_t size = (requested + 511) / 512 * 512;
    void* memory = nullptr;
    std::unique_lock lock(mutex_);
    auto& stats = stats_.at(stream.device_index());
    if (auto unused = free_.extract({stream.device_index(), stream.id(), size})) {
      memory = unused.mapped();
    } else if (size > 0) {
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
    if (size > 0) live_.insert({memory, Block{size, stream, {}}});
    return {memory, memory, &deleteBlock, stream.device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deleteBlock; }
  void copy_data(void* to, const void* from, size_t size) const override {
    wait([&] { return orMemcpy(to, from, size, orMemcpyDefault); });
  }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr& data, Stream stream) override {
    const std::unique_lock lock(mutex_);
    const auto found = live_.find(data.get());
    if (found != live_.end()) found->second.users.push_back(stream);
  }
  void emptyCache(c10::MempoolId_t) override {
    std::unique_lock lock(mutex_);
    const auto unused = std::exchange(free_, {});
    for (const auto& [key, memory] : unused) {
      stats_[std::get<DeviceIndex>(key)].reserved_bytes[0].decrease(std::get<size_t>(key));
    }
    lock.unlock();
    for (const auto& one : unused) wait([&] { return orFree(one.second); });
  }

  // Statistics, of bytes. torch has names for counts, too.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    const std::unique_lock lock(mutex_);
    return stats_.at(device);
  }
  void resetAccumulatedStats(DeviceIndex d) override { reset(d, &Stat::reset_accumulated); }
  void resetPeakStats(DeviceIndex device) override { reset(device, &Stat::reset_peak); }

 private:
  struct Block {
    size_t size;
    Stream stream;              // that it was allocated for
    std::vector<Stream> users;  // others, by record_stream()
  };

  static void deleteBlock(void* memory);
  void free(void* memory) {
    std::unique_lock lock(mutex_);
    const Block block = live_.extract(memory).mapped();
    lock.unlock();
    for (const Stream& user : block.users) waitForStream(block.stream, user);
    lock.lock();
    stats_.at(block.stream.device_index()).allocated_bytes[0].decrease(block.size);
    free_.insert({{block.stream.device_index(), block.stream.id(), block.size}, memory});
  }
  void reset(DeviceIndex device, void (Stat::*call)()) {
    const std::unique_lock lock(mutex_);
    (stats_.at(device).allocated_bytes[0].*call)();
    (stats_.at(device).reserved_bytes[0].*call)();
  }

  std::mutex mutex_;
  std::map<void*, Block> live_;
  std::multimap<std::tuple<DeviceIndex, StreamId, size_t>, void*> free_;
  std::array<c10::CachingDeviceAllocator::DeviceStats, OPENREG_MAX_DEVICES> stats_;
};

// Never destroyed, as tensors may be left.
static DeviceAllocator& allocator = *new DeviceAllocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

void DeviceAllocator::deleteBlock(void* memory) {
  if (memory != nullptr && !isInBadFork()) allocator.free(memory);
}

}  // namespace chip
