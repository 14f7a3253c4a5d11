// Step 10 of docs/bring_up.md, the memory of graphs. In full:
// csrc/memory/DeviceCachingAllocator.cpp.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ScopeExit.h>

#include <memory>
#include <tuple>

#include "../runtime/Stream.h"

namespace chip {

// docs: chip-private-pools
// A replay uses the addresses of the capture. So what a capture allocates comes from a pool, whose
// memory is given out in captures only. The pool lives as long as a graph or a tensor has it.
using BlockKey = std::tuple<DeviceIndex, StreamId, size_t>;
using PrivatePool = std::multimap<BlockKey, c10::DataPtr>;  // the blocks that are not in use

// In place of the device's allocator from the first capture on; that one has the memory of pools,
// too, and counts it as in use until the pool ends.
class PoolAllocator final : public c10::DeviceAllocator {
 public:
  static PoolAllocator& get() {
    static auto* allocator = new PoolAllocator(c10::getDeviceAllocator(kType));
    return *allocator;
  }

  // Serves a capture from the pool of this id, which may be that of another graph.
  std::shared_ptr<PrivatePool> begin(unsigned long long capture, c10::MempoolId_t id) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<PrivatePool> pool = pools_[id].lock();
    if (pool == nullptr) pools_[id] = pool = std::make_shared<PrivatePool>();
    return captures_[capture] = pool;
  }
  void end(unsigned long long capture) {
    const std::lock_guard lock(mutex_);
    captures_.erase(capture);
  }

  c10::DataPtr allocate(size_t size) override {
    const Stream stream = currentStream(current_device());
    Block block{{stream.device_index(), stream.id(), (size + 511) / 512 * 512}, nullptr, {}};
    std::unique_lock lock(mutex_);
    if (const auto found = captures_.find(captureOf(stream)); found != captures_.end()) {
      block.pool = found->second;
      if (auto unused = block.pool->extract(block.key)) block.memory = std::move(unused.mapped());
    }
    lock.unlock();
    if (block.pool == nullptr || size == 0) return inner_->allocate(size);
    if (!block.memory) block.memory = allocateInCapture(std::get<size_t>(block.key));
    void* address = block.memory.get();
    return {address, new Block(std::move(block)), &giveBack, stream.device()};
  }

  // The kernels of a graph run later, and its program keeps what they use.
  void recordStream(const c10::DataPtr& data, Stream stream) override {
    if (captureOf(stream) == 0) inner_->recordStream(data, stream);
  }
  bool initialized() override { return inner_->initialized(); }
  void emptyCache(c10::MempoolId_t id) override { inner_->emptyCache(id); }
  void copy_data(void* to, const void* from, size_t n) const override {
    inner_->copy_data(to, from, n);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return inner_->getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex d) override { inner_->resetAccumulatedStats(d); }
  void resetPeakStats(DeviceIndex device) override { inner_->resetPeakStats(device); }

 private:
  struct Block {
    BlockKey key;
    std::shared_ptr<PrivatePool> pool;
    c10::DataPtr memory;
  };

  explicit PoolAllocator(c10::DeviceAllocator* inner) : inner_(inner) {
    c10::SetAllocator(kType, this, /*priority=*/1);  // REGISTER_ALLOCATOR has 0
  }
  // Allocation is no part of a graph; the driver refuses it unless the thread says otherwise.
  c10::DataPtr allocateInCapture(size_t size) {
    orStreamCaptureMode mode = orStreamCaptureModeRelaxed;
    check(orThreadExchangeStreamCaptureMode(&mode));
    const auto restore =
        c10::make_scope_exit([&] { std::ignore = orThreadExchangeStreamCaptureMode(&mode); });
    return inner_->allocate(size);
  }
  static void giveBack(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    const std::lock_guard lock(get().mutex_);
    block->pool->emplace(block->key, std::move(block->memory));
  }

  c10::DeviceAllocator* inner_;
  std::mutex mutex_;
  std::map<c10::MempoolId_t, std::weak_ptr<PrivatePool>> pools_;
  std::map<unsigned long long, std::shared_ptr<PrivatePool>> captures_;  // those under way
};
// docs: end

}  // namespace chip
