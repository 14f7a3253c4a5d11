#include "csrc/extras/dry_run/MemoryRecord.h"

#include <c10/core/GradMode.h>
#include <openreg/device.h>
#include <openreg/memory.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "csrc/core/Mutex.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {
namespace {

// The bytes of a device that are in use, by this process and by others.
size_t usedBytes(DeviceIndex device) {
  size_t free_size = 0;
  size_t total_size = 0;
  OPENREG_CHECK(orMemGetInfo(&free_size, &total_size, device));
  return total_size - free_size;
}

class DeviceRecord {
 public:
  bool isUsed() const { return time_ != 0; }
  size_t allocated() const { return allocated_; }
  uint64_t now() const { return time_; }

  // Returns whether the allocated memory has never been as much.
  bool add(const void* address, BlockRecord block) {
    block.allocated_at = ++time_;
    allocated_ += block.size;
    live_.insert_or_assign(address, std::move(block));
    if (allocated_ <= peak_.allocated) {
      return false;
    }
    freed_since_peak_.clear();
    return true;
  }

  void setPeak(MemoryMoment moment) { peak_ = std::move(moment); }
  void noteUsed(size_t used) { most_used_ = std::max(most_used_, used); }

  void remove(const void* address) {
    const auto found = live_.find(address);
    if (found == live_.end()) {
      return;  // it was allocated before the record began
    }
    BlockRecord block = std::move(found->second);
    live_.erase(found);
    block.freed_at = ++time_;
    allocated_ -= block.size;
    if (spans_.size() < kMaxSpans) {
      spans_.push_back(block);
    }
    if (block.allocated_at <= peak_.time) {
      freed_since_peak_.push_back(std::move(block));
    }
  }

  void noteUse(const void* address, BlockUse use) {
    if (const auto found = live_.find(address); found != live_.end()) {
      found->second.use = use;
    }
  }

  void noteBackwardBegin() {
    last_backward_ = time_;
    for (auto& [address, block] : live_) {
      block.outlived_forward = true;
    }
  }

  MemoryPeak peak() const {
    MemoryPeak result;
    static_cast<MemoryMoment&>(result) = peak_;
    result.is_before_backward = peak_.time > last_backward_;
    result.most_used = most_used_;
    result.blocks = freed_since_peak_;
    for (const auto& [address, block] : live_) {
      if (block.allocated_at <= peak_.time) {
        result.blocks.push_back(block);
      }
    }
    std::sort(
        result.blocks.begin(), result.blocks.end(),
        [](const BlockRecord& a, const BlockRecord& b) { return a.allocated_at < b.allocated_at; });
    return result;
  }

  std::vector<BlockRecord> spans() const {
    std::vector<BlockRecord> result = spans_;
    for (const auto& [address, block] : live_) {
      result.push_back(block);
    }
    return result;
  }

 private:
  uint64_t time_ = 0;
  uint64_t last_backward_ = 0;
  size_t allocated_ = 0;
  size_t most_used_ = 0;
  std::unordered_map<const void*, BlockRecord> live_;
  std::vector<BlockRecord> freed_since_peak_;
  std::vector<BlockRecord> spans_;
  MemoryMoment peak_;
};

class MemoryRecord final : public Observer {
 public:
  void memoryAllocation(const void* address, size_t requested, size_t size,
                        const OpenRegStream& stream, MempoolId_t /*pool*/) override {
    const DeviceIndex device = stream.device_index();
    reserveContext(device);
    BlockRecord block;
    block.requested = requested;
    block.size = size;
    block.stack = gatherStack();
    block.records_gradients = GradMode::is_enabled();
    const size_t used = usedBytes(device);
    const Stack stack = block.stack;
    const Lock lock(mutex_);
    block.phase = phase();
    DeviceRecord& record = devices_.at(static_cast<size_t>(device));
    if (record.add(address, std::move(block))) {
      record.setPeak(moment(record, used, stack));
    }
    record.noteUsed(used);
    if (used > watched_limit_ && !passing_.has_value()) {
      passing_ = {device, requested, moment(record, used, stack)};
    }
  }

  void kernelLaunch(const char* kernel) override {
    const Lock lock(mutex_);
    kernels_.insert(kernel);
  }

  void memoryDeallocation(const void* address, size_t /*size*/, const OpenRegStream& owner,
                          MempoolId_t /*pool*/) noexcept override {
    const Lock lock(mutex_);
    devices_.at(static_cast<size_t>(owner.device_index())).remove(address);
  }

  void memoryExhaustion(DeviceIndex device, size_t requested, size_t /*allowed*/,
                        size_t /*free*/) override {
    const Stack stack = gatherStack();
    const size_t used = usedBytes(device);
    const Lock lock(mutex_);
    if (!failure_.has_value()) {
      failure_ = {device, requested, moment(devices_.at(static_cast<size_t>(device)), used, stack)};
    }
  }

  void noteUse(ArrayRef<uintptr_t> addresses, BlockUse use) {
    const Lock lock(mutex_);
    for (const uintptr_t address : addresses) {
      for (DeviceRecord& device : devices_) {
        device.noteUse(reinterpret_cast<const void*>(address), use);
      }
    }
  }

  void noteBackwardBegin() {
    const Lock lock(mutex_);
    for (DeviceRecord& device : devices_) {
      device.noteBackwardBegin();
    }
  }

  void noteStep(bool begins) {
    const Lock lock(mutex_);
    is_in_step_ = begins;
    step_ += begins ? 0 : 1;
  }

  void setContext(size_t nbytes) {
    const Lock lock(mutex_);
    context_sizes_.fill(nbytes);
  }

  std::vector<const char*> kernels() {
    const Lock lock(mutex_);
    return {kernels_.begin(), kernels_.end()};
  }

  void setLimit(size_t limit) {
    const Lock lock(mutex_);
    watched_limit_ = limit;
  }

  std::vector<DeviceIndex> used() {
    const Lock lock(mutex_);
    std::vector<DeviceIndex> result;
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].isUsed()) {
        result.push_back(static_cast<DeviceIndex>(i));
      }
    }
    return result;
  }

  MemoryPeak peak(DeviceIndex device) {
    const Lock lock(mutex_);
    return devices_.at(static_cast<size_t>(device)).peak();
  }

  std::vector<BlockRecord> spans(DeviceIndex device) {
    const Lock lock(mutex_);
    return devices_.at(static_cast<size_t>(device)).spans();
  }

  std::optional<FailedAllocation> failure() {
    const Lock lock(mutex_);
    return failure_;
  }

  std::optional<FailedAllocation> passing() {
    const Lock lock(mutex_);
    return passing_;
  }

 private:
  // Before the first allocation of a device.
  void reserveContext(DeviceIndex device) {
    size_t nbytes = 0;
    {
      const Lock lock(mutex_);
      nbytes = std::exchange(context_sizes_.at(static_cast<size_t>(device)), 0);
    }
    if (nbytes == 0) {
      return;
    }
    void* address = nullptr;
    const DeviceIndex previous = exchange_device(device);
    const orError_t error = orMalloc(&address, nbytes);
    exchange_device(previous);
    OPENREG_CHECK_RESULT(error, "orMalloc");
  }

  MemoryMoment moment(const DeviceRecord& record, size_t used, const Stack& stack) const
      OPENREG_REQUIRES(mutex_) {
    return {record.allocated(), used, record.now(), step_, phase(), stack};
  }

  // Of the calling thread.
  Phase phase() const OPENREG_REQUIRES(mutex_) {
    if (isInBackward()) {
      return Phase::Backward;
    }
    return is_in_step_ ? Phase::Optimizer : Phase::Forward;
  }

  Mutex mutex_;
  std::array<DeviceRecord, OPENREG_MAX_DEVICES> devices_ OPENREG_GUARDED_BY(mutex_);
  std::array<size_t, OPENREG_MAX_DEVICES> context_sizes_ OPENREG_GUARDED_BY(mutex_){};
  std::unordered_set<const char*> kernels_ OPENREG_GUARDED_BY(mutex_);
  bool is_in_step_ OPENREG_GUARDED_BY(mutex_) = false;
  uint64_t step_ OPENREG_GUARDED_BY(mutex_) = 0;
  size_t watched_limit_ OPENREG_GUARDED_BY(mutex_) = SIZE_MAX;
  std::optional<FailedAllocation> failure_ OPENREG_GUARDED_BY(mutex_);
  std::optional<FailedAllocation> passing_ OPENREG_GUARDED_BY(mutex_);
};

// Leaked, because memory is freed until the process ends.
MemoryRecord& theRecord() {
  static auto* const instance = new MemoryRecord;
  return *instance;
}

}  // namespace

void startMemoryRecord() { addObserver(theRecord()); }

void setContextSize(size_t nbytes) { theRecord().setContext(nbytes); }

std::vector<const char*> launchedKernels() { return theRecord().kernels(); }

void noteBlockUse(ArrayRef<uintptr_t> addresses, BlockUse use) {
  theRecord().noteUse(addresses, use);
}

void noteBackwardBegin() { theRecord().noteBackwardBegin(); }

void noteOptimizerStep(bool begins) { theRecord().noteStep(begins); }

std::vector<DeviceIndex> recordedDevices() { return theRecord().used(); }

MemoryPeak memoryPeak(DeviceIndex device) { return theRecord().peak(device); }

std::vector<BlockRecord> memorySpans(DeviceIndex device) { return theRecord().spans(device); }

std::optional<FailedAllocation> firstFailure() { return theRecord().failure(); }

void setWatchedLimit(size_t limit) { theRecord().setLimit(limit); }

std::optional<FailedAllocation> firstPassing() { return theRecord().passing(); }

}  // namespace c10::openreg
