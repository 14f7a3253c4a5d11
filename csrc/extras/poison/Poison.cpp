#include "csrc/extras/poison/Poison.h"

#include <openreg/openreg.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/Mutex.h"
#include "csrc/core/Settings.h"
#include "csrc/memory/Allocator.h"
#include "csrc/memory/BlockObserver.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Launch.h"
#include "torch_openreg/core/TraceScope.h"

namespace c10::openreg {
namespace {

const Setting kPoison{"OPENREG_MEMORY_POISON", "0", "0 1",
                      "1: unused memory is filled with a pattern, and allocations are guarded."};

const Setting kQuarantine{"OPENREG_MEMORY_QUARANTINE", "256MiB", "<size>",
                          "With OPENREG_MEMORY_POISON=1, how much freed memory is not reused yet.",
                          "a size, such as 64MiB; 0: none"};

constexpr size_t kGuardSize = 512;

// The number of bytes of freed blocks that may be in quarantine.
size_t quarantineSize() {
  static const size_t size = kQuarantine.bytes();
  return size;
}

// Set once the fill of a block has run.
using FillMark = std::shared_ptr<std::atomic<bool>>;

// The kernel that fills a block.
struct Fill {
  std::byte* kernel_address;
  size_t size;
  FillMark is_done;

  void operator()() const {
    fillOnHost(kernel_address, size);
    is_done->store(true, std::memory_order_release);
  }
  void describe(orActivityRecord* record) const { WorkDescription::fill(size).describe(record); }
};

// Fills a block on its stream, unless the stream captures or has been destroyed. Waits if the
// stream's queue is full.
void fillOnStream(const Block& block, const FillMark& is_done) {
  const OpenRegStream& stream = *block.stream;
  if (stream.isAlive() && !stream.isCapturing()) {
    launchKernel<"poison">(stream, Fill{kernelAddress(block.address), block.size, is_done});
  }
}

struct ExpectedFill {
  FillMark mark;
  bool is_held = false;  // whether the block is in quarantine
};

// The poison of one device.
class DevicePoison {
 public:
  // Expects a fill of the block, which is in use until free() is called. A later call replaces an
  // earlier one.
  FillMark expectFill(const Block& block) {
    const Lock lock(mutex_);
    const auto mark = std::make_shared<std::atomic<bool>>(false);
    fills_[&block] = {mark};
    return mark;
  }

  void addFree(const Block& block) {
    const Lock lock(mutex_);
    ranges_.fill(block);
  }

  void forgetFree(const Block& block) {
    const Lock lock(mutex_);
    ranges_.forget(block);
  }

  // Forgets a block that becomes free.
  void free(const Block& block) {
    const Lock lock(mutex_);
    fills_.erase(&block);
    if (check_count_ > 0) {
      freed_during_check_.add(block);
    }
  }

  // Adds a block to the quarantine. Returns the oldest ones that have no room then.
  std::vector<Block*> hold(Block* block) {
    const Lock lock(mutex_);
    fills_.at(block).is_held = true;
    held_.push_back(block);
    held_size_ += block->size;
    return takeHeld(quarantineSize());
  }

  std::vector<Block*> takeAllHeld() {
    const Lock lock(mutex_);
    return takeHeld(0);
  }

  // Blocks that become free between the two calls are not filled by that check.
  void beginCheck() {
    const Lock lock(mutex_);
    if (check_count_++ == 0) {
      freed_during_check_.clear();
    }
  }
  void endCheck() {
    const Lock lock(mutex_);
    --check_count_;
  }

  // Compares a block, and fills it if it has been free since the check began.
  std::optional<Corruption> check(const Block& block) {
    const Lock lock(mutex_);
    if (const auto fill = fills_.find(&block); fill != fills_.end()) {
      // Streams may still write to other freed blocks, which wait for them.
      const bool is_comparable = (block.is_allocated || fill->second.is_held) &&
                                 fill->second.mark->load(std::memory_order_acquire);
      return is_comparable ? c10::openreg::findCorruption(block) : std::nullopt;
    }
    // The owner of a private pool may write to its free blocks: a graph does so in each replay.
    if (!block.isFree() || block.pool->owner != nullptr) {
      return std::nullopt;
    }
    std::optional<Corruption> found = ranges_.findCorruption(block);
    if (!freed_during_check_.overlap(block)) {
      ranges_.fill(block);
    }
    return found;
  }

 private:
  std::vector<Block*> takeHeld(size_t size_to_leave) OPENREG_REQUIRES(mutex_) {
    std::vector<Block*> taken;
    while (held_size_ > size_to_leave) {
      taken.push_back(held_.front());
      held_size_ -= held_.front()->size;
      held_.pop_front();
    }
    return taken;
  }

  Mutex mutex_;                                       // locked after that of the device's allocator
  PoisonedRanges ranges_ OPENREG_GUARDED_BY(mutex_);  // free memory that was filled
  // By the block: all that are not free.
  std::unordered_map<const Block*, ExpectedFill> fills_ OPENREG_GUARDED_BY(mutex_);
  std::deque<Block*> held_ OPENREG_GUARDED_BY(mutex_);  // in quarantine, the oldest first
  size_t held_size_ OPENREG_GUARDED_BY(mutex_) = 0;
  int check_count_ OPENREG_GUARDED_BY(mutex_) = 0;  // checks that have begun and not ended
  PoisonedRanges freed_during_check_ OPENREG_GUARDED_BY(mutex_);
};

class Poison final : public BlockObserver {
 public:
  DevicePoison& of(DeviceIndex device) { return devices_[static_cast<size_t>(device)]; }

  size_t guardSize() const noexcept override { return is_on_ ? kGuardSize : 0; }

  void segmentReserved(const Block& block) override { of(block.device).addFree(block); }
  void segmentReleased(const Block& block) override { of(block.device).forgetFree(block); }

  void blockAllocated(const Block& block) override { of(block.device).forgetFree(block); }

  void blockFreed(const Block& block) override {
    if (is_on_) {
      of(block.device).free(block);
    }
  }

  void beforeFirstUse(const Block& block) override {
    if (is_on_) {
      fillOnStream(block, of(block.device).expectFill(block));
    }
  }

  bool shouldHoldBack(const Block& block) noexcept override {
    const OpenRegStream& stream = *block.stream;
    int is_alone = 0;
    const bool qualifies =
        is_on_ && block.size <= quarantineSize() && block.pool->owner == nullptr &&
        !block.hasOtherStreams() && stream.isAlive() && !stream.isCapturing() &&
        orStreamIsAlone(&is_alone, stream.stream()) == orSuccess && is_alone != 0;
    if (!qualifies) {
      return false;
    }
    try {
      fillOnStream(block, of(block.device).expectFill(block));
    } catch (const c10::Error&) {
      // The stream has failed: the block becomes free as usual.
      return false;
    }
    return true;
  }

  std::vector<Block*> holdBack(Block* block) override { return of(block->device).hold(block); }

  std::vector<Block*> takeHeldBack(DeviceIndex device) override { return of(device).takeAllHeld(); }

  void pinnedMemoryReserved(void* address, size_t size) override { fillOnHost(address, size); }

 private:
  const bool is_on_ = isPoisonOn();  // otherwise, only free and new memory is filled
  std::array<DevicePoison, OPENREG_MAX_DEVICES> devices_;
};

// Leaked, because tensors may be freed by static destructors.
Poison& thePoison() {
  static auto* const instance = new Poison;
  return *instance;
}

struct Installation {
  Installation() {
    beforeFirstAllocation([] {
      if (isPoisonOn()) {
        setBlockObserver(thePoison());
      }
    });
  }
} const installation;

// The time from which a check fills no block that becomes free.
class Check {
 public:
  Check() {
    for (DeviceIndex device = 0; device < device_count(); ++device) {
      thePoison().of(device).beginCheck();
    }
  }
  Check(const Check&) = delete;
  Check& operator=(const Check&) = delete;
  ~Check() {
    for (DeviceIndex device = 0; device < device_count(); ++device) {
      thePoison().of(device).endCheck();
    }
  }
};

}  // namespace

bool isPoisonOn() {
  static const bool is_on = kPoison.isOn();
  return is_on;
}

std::vector<Corruption> findCorruptions() {
  const BlockingRegion region;
  const Check check;
  for (DeviceIndex device = 0; device < device_count(); ++device) {
    synchronizeDevice(device);
  }
  std::vector<Corruption> found;
  forEachBlock([&](const Block& block) {
    if (auto corruption = thePoison().of(block.device).check(block)) {
      found.push_back(std::move(*corruption));
    }
  });
  std::sort(found.begin(), found.end(), [](const Corruption& a, const Corruption& b) {
    return std::tie(a.device, a.address) < std::tie(b.device, b.address);
  });
  return found;
}

void fillFreeMemory() {
  const BlockingRegion region;
  Poison& poison = thePoison();
  setBlockObserver(poison);
  finishPendingFrees();
  forEachBlock([&](const Block& block) {
    if (!block.isFree()) {
      return;
    }
    if (block.pool->owner == nullptr) {
      poison.of(block.device).addFree(block);
    } else {
      fillOnHost(kernelAddress(block.address), block.size);
    }
  });
}

}  // namespace c10::openreg
