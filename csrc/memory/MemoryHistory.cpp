#include "csrc/memory/MemoryHistory.h"

#include <algorithm>
#include <map>

#include "csrc/core/Mutex.h"

namespace c10::openreg {
namespace {

using CachingDeviceAllocator::RecordContext;

// Neither has a constructor or destructor to run: static objects allocate and free memory, too.
constinit Mutex settings_mutex;  // a leaf
constinit HistorySettings shared_settings OPENREG_GUARDED_BY(settings_mutex);

HistorySettings currentSettings() {
  const Lock lock(settings_mutex);
  return shared_settings;
}

thread_local std::string metadata;

}  // namespace

void setMemoryMetadata(std::string text) { metadata = std::move(text); }

const std::string& memoryMetadata() { return metadata; }

HistorySettings namedHistorySettings(const std::optional<std::string>& enabled,
                                     const std::optional<std::string>& context,
                                     CachingDeviceAllocator::CreateContextFn gather,
                                     size_t max_entries, const std::vector<std::string>& skipped) {
  static const std::map<std::string, RecordContext> levels = {{"state", RecordContext::STATE},
                                                              {"alloc", RecordContext::ALLOC},
                                                              {"all", RecordContext::ALL}};
  HistorySettings settings;
  settings.is_enabled = enabled.has_value();
  settings.keeps_entries = enabled == "all";
  settings.when = context ? levels.at(*context) : RecordContext::NEVER;
  settings.gather = gather;
  settings.max_entries = max_entries;
  for (const std::string& action : skipped) {
    settings.is_skipped.at(CachingDeviceAllocator::parseTraceEntryAction(action)) = true;
  }
  return settings;
}

void setHistorySettings(const HistorySettings& settings) {
  const Lock lock(settings_mutex);
  shared_settings = settings;
  detail::is_history_enabled.store(settings.is_enabled, std::memory_order_relaxed);
}

std::shared_ptr<GatheredContext> gatherContext(RecordContext level) {
  if (C10_LIKELY(!isHistoryEnabled())) {
    return nullptr;
  }
  const HistorySettings settings = currentSettings();
  return settings.gather != nullptr && settings.when >= level ? settings.gather() : nullptr;
}

void MemoryHistory::record(TraceEntry::Action action, DeviceIndex device, size_t address,
                           size_t size, StreamId stream, MempoolId_t pool,
                           std::shared_ptr<GatheredContext> context) {
  if (C10_LIKELY(!isHistoryEnabled())) {
    return;
  }
  const HistorySettings settings = currentSettings();
  if (!settings.keeps_entries || settings.max_entries == 0 || settings.is_skipped[action]) {
    return;
  }
  if (settings.when < RecordContext::ALLOC) {
    context = nullptr;
  }
  add(TraceEntry(action, device, address, size, reinterpret_cast<void*>(stream), pool,
                 getApproximateTime(), std::move(context), /*compile_context=*/"", metadata),
      settings.max_entries);
}

// The ring grows to the limit; then each new entry replaces the oldest.
void MemoryHistory::add(TraceEntry entry, size_t max_entries) {
  if (ring_.size() != max_entries && oldest_ != 0) {
    // The limit has changed. Only a full ring may start at any position.
    ring_ = entries();
    oldest_ = 0;
  }
  if (ring_.size() > max_entries) {
    ring_.erase(ring_.begin(), ring_.end() - static_cast<std::ptrdiff_t>(max_entries));
  }
  if (ring_.size() < max_entries) {
    ring_.push_back(std::move(entry));
  } else {
    ring_[oldest_] = std::move(entry);
    oldest_ = (oldest_ + 1) % max_entries;
  }
}

std::vector<MemoryHistory::TraceEntry> MemoryHistory::entries() const {
  std::vector<TraceEntry> sorted = ring_;
  std::rotate(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(oldest_), sorted.end());
  return sorted;
}

void MemoryHistory::clear() {
  ring_.clear();
  oldest_ = 0;
}

}  // namespace c10::openreg
