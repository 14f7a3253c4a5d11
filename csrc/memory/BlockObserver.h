// The observer of blocks: how another part of the library fills, guards and checks the memory that
// the allocators hand out. The allocators need none; there is at most one.
//
// Note [Blocks held back]
// The observer may hold a freed block back, so that its memory is not reused for some time. The
// allocator then neither reuses nor merges the block: until the observer returns it, the
// statistics count it like one that waits for other streams.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <vector>

#include "csrc/memory/BlockPool.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Functions "with the lock" are called with the lock of the device's allocator held: they must not
// wait, and must not call the allocator. Any thread may call any function at any time.
class BlockObserver {
 public:
  BlockObserver() = default;
  BlockObserver(const BlockObserver&) = delete;
  BlockObserver& operator=(const BlockObserver&) = delete;

  // Bytes that each block has beyond the requested size. Always the same.
  virtual size_t guardSize() const noexcept { return 0; }

  // With the lock: memory was reserved from the device, or is about to be returned to it, as one
  // free block.
  virtual void segmentReserved(const Block& /*block*/) {}
  virtual void segmentReleased(const Block& /*block*/) {}

  // With the lock: a block was allocated, or is about to become free.
  virtual void blockAllocated(const Block& /*block*/) {}
  virtual void blockFreed(const Block& /*block*/) {}

  // Without a lock: a block was allocated, and its owner does not know of it yet. What this submits
  // to its stream precedes all work of the owner. An exception ends the allocation.
  virtual void beforeFirstUse(const Block& /*block*/) {}

  // Without a lock: whether to hold back a block that is being freed. The block is still allocated.
  virtual bool shouldHoldBack(const Block& /*block*/) noexcept { return false; }

  // With the lock: takes a block for which shouldHoldBack() was true; it is no longer allocated.
  // Returns blocks that become free for it.
  virtual std::vector<Block*> holdBack(Block* block) { return {block}; }

  // With the lock: returns all blocks of the device that are held back. They become free.
  virtual std::vector<Block*> takeHeldBack(DeviceIndex /*device*/) { return {}; }

  // Without a lock: pinned memory was reserved.
  virtual void pinnedMemoryReserved(void* /*address*/, size_t /*size*/) {}

 protected:
  ~BlockObserver() = default;
};

namespace detail {

inline std::atomic<BlockObserver*> block_observer{nullptr};

}  // namespace detail

// The observer; null if there is none.
inline BlockObserver* blockObserver() noexcept {
  return detail::block_observer.load(std::memory_order_acquire);
}

// Sets the observer, which must live as long as the process. It may be set once memory has been
// allocated: it then gets no call for earlier blocks.
OPENREG_EXPORT void setBlockObserver(BlockObserver& observer) noexcept;

// Sets the function that is called before the first allocation, and may set the observer. There is
// one; set by a static initializer while the library is loaded. Its exceptions are those of the
// allocation.
OPENREG_EXPORT void beforeFirstAllocation(void (*function)()) noexcept;

// Calls the function that beforeFirstAllocation() set, until it has returned once.
void prepareBlockObserver();

}  // namespace c10::openreg
