// What the memory of each device was used for when most of it was.
//
// Note [The blocks at the peak]
// A report needs the blocks that were allocated at the peak, and a program allocates without end.
// So only those are kept that may belong to it: the live blocks, and those that were live at the
// latest peak and have been freed since. The next peak drops the latter. What a block is for is
// often known later than the peak, such as the gradients' blocks at the optimizer's step, and is
// noted of blocks that are still alive.
//
// The first kMaxSpans blocks that were freed are kept as well, for a picture of memory over time.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/core/Stack.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// What a program has said of a block.
enum class BlockUse : uint8_t { Unknown, Parameter, Gradient, OptimizerState, Workspace };

enum class Phase : uint8_t { Forward, Backward, Optimizer };

// An allocation. Times are numbers of allocations and frees of the device.
struct BlockRecord {
  size_t requested = 0;  // bytes
  size_t size = 0;       // bytes, of the block
  uint64_t allocated_at = 0;
  uint64_t freed_at = 0;  // 0: not yet
  Stack stack;
  BlockUse use = BlockUse::Unknown;
  Phase phase = Phase::Forward;
  bool records_gradients = false;  // the thread that allocated it recorded for a backward pass
  bool outlived_forward = false;   // a backward pass began while it was alive
};

// A moment of a device's memory.
struct MemoryMoment {
  size_t allocated = 0;  // bytes, of all blocks
  size_t used = 0;       // bytes, of the device: what the allocator reserves, and what others use
  uint64_t time = 0;
  uint64_t step = 0;  // of the optimizer, from 0
  Phase phase = Phase::Forward;
  Stack stack;
};

struct MemoryPeak : MemoryMoment {
  bool is_before_backward = false;  // no backward pass has begun since
  size_t most_used = 0;             // bytes of the device, at any time
  std::vector<BlockRecord> blocks;  // whose sizes' sum is `allocated`
};

// An allocation that found no room.
struct FailedAllocation {
  DeviceIndex device = 0;
  size_t requested = 0;
  MemoryMoment moment;
};

constexpr size_t kMaxSpans = 100'000;

// Starts the record. It lasts until the process ends.
// Errors: throws if there are too many observers.
OPENREG_EXPORT void startMemoryRecord();

// Has each device that allocates memory also lose `nbytes` of it, as a GPU does to CUDA itself.
OPENREG_EXPORT void setContextSize(size_t nbytes);

// The kernels that were launched: names of operators.
OPENREG_EXPORT std::vector<const char*> launchedKernels();

// The program says what blocks are for: those that contain the addresses, which are starts of
// storages. Other addresses are ignored.
OPENREG_EXPORT void noteBlockUse(ArrayRef<uintptr_t> addresses, BlockUse use);

// A backward pass begins.
OPENREG_EXPORT void noteBackwardBegin();

// The step of an optimizer begins or ends.
OPENREG_EXPORT void noteOptimizerStep(bool begins);

// The devices that have allocated memory.
OPENREG_EXPORT std::vector<DeviceIndex> recordedDevices();

OPENREG_EXPORT MemoryPeak memoryPeak(DeviceIndex device);

// Blocks with their times, for a picture: those that are alive, and the first ones that are not.
OPENREG_EXPORT std::vector<BlockRecord> memorySpans(DeviceIndex device);

// The first allocation that failed, and the moment at which the use of a device first passed a
// limit of bytes that setWatchedLimit() has set.
OPENREG_EXPORT std::optional<FailedAllocation> firstFailure();
OPENREG_EXPORT void setWatchedLimit(size_t limit);
OPENREG_EXPORT std::optional<FailedAllocation> firstPassing();

}  // namespace c10::openreg
