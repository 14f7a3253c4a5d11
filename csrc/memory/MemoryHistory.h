// What happened to a device's memory, and who did it: for snapshots.
//
// Off unless a program asks. Then each event of the allocator leaves an entry, with the stack of
// its caller if asked for.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// The same for all devices.
struct HistorySettings {
  using TraceEntry = CachingDeviceAllocator::TraceEntry;

  bool is_enabled = false;
  bool keeps_entries = false;  // else only the contexts of live allocations
  CachingDeviceAllocator::CreateContextFn gather = nullptr;
  CachingDeviceAllocator::RecordContext when = CachingDeviceAllocator::RecordContext::NEVER;
  size_t max_entries = 0;
  std::array<bool, TraceEntry::OOM + 1> is_skipped{};  // by action
};

// The settings by torch.cuda's names for them. `enabled` is "state" or "all", or nothing: off;
// `context` is "state", "alloc" or "all", or nothing: no stacks. `skipped` are actions.
// Errors: std::out_of_range or c10::Error for another name.
OPENREG_EXPORT HistorySettings namedHistorySettings(const std::optional<std::string>& enabled,
                                                    const std::optional<std::string>& context,
                                                    CachingDeviceAllocator::CreateContextFn gather,
                                                    size_t max_entries,
                                                    const std::vector<std::string>& skipped);

namespace detail {
// A copy of the settings' member.
inline std::atomic<bool> is_history_enabled{false};
}  // namespace detail

// Whether the settings are enabled: what every event of an allocator asks first.
inline bool isHistoryEnabled() {
  return detail::is_history_enabled.load(std::memory_order_relaxed);
}

// Replaces the settings. Threads: any; events that happen meanwhile go by the old ones or the new.
void setHistorySettings(const HistorySettings& settings);

// A text that entries have which events on the calling thread leave; empty at first.
OPENREG_EXPORT void setMemoryMetadata(std::string text);
OPENREG_EXPORT const std::string& memoryMetadata();

// Gathers the calling thread's stack if contexts are recorded at this level, else returns null.
// It takes the GIL, if Python's frames were asked for: no lock may be held.
std::shared_ptr<GatheredContext> gatherContext(CachingDeviceAllocator::RecordContext level);

// The events of one device, the newest `max_entries` of them. Not thread-safe.
class MemoryHistory {
 public:
  using TraceEntry = CachingDeviceAllocator::TraceEntry;

  // Adds an entry, unless history is off or skips the action.
  void record(TraceEntry::Action action, DeviceIndex device, size_t address, size_t size,
              StreamId stream, MempoolId_t pool, std::shared_ptr<GatheredContext> context);

  // All entries, oldest first.
  std::vector<TraceEntry> entries() const;

  void clear();

 private:
  void add(TraceEntry entry, size_t max_entries);

  std::vector<TraceEntry> ring_;
  size_t oldest_ = 0;
};

}  // namespace c10::openreg
