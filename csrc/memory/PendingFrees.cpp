#include "csrc/memory/PendingFrees.h"

#include <algorithm>
#include <cstdio>

#include "csrc/core/CaptureMode.h"

namespace c10::openreg {

void PendingFrees::add(Block* block) {
  block->pending_uses = 1;  // until watch()
  unrecorded_.push_back(block);
}

std::vector<Block*> PendingFrees::takeRecordable() {
  const auto is_recordable = [](const Block* block) {
    const auto& streams = block->extras->used_on;
    return std::none_of(streams.begin(), streams.end(), [](const OpenRegStream& stream) {
      return stream.isAlive() && stream.isCapturing();
    });
  };
  const auto first = std::stable_partition(unrecorded_.begin(), unrecorded_.end(),
                                           [&](const Block* one) { return !is_recordable(one); });
  std::vector<Block*> recordable(first, unrecorded_.end());
  unrecorded_.erase(first, unrecorded_.end());
  return recordable;
}

PendingFrees::Uses PendingFrees::recordUses(Block* block) noexcept {
  Uses uses;
  try {
    for (const OpenRegStream& stream : block->extras->used_on) {
      if (!stream.isAlive()) {
        uses.destroyed_streams.push_back(stream);
        continue;
      }
      const auto event = std::make_shared<OpenRegEvent>();
      event->record(stream);
      uses.events.emplace_back(stream, event);
    }
    uses.is_complete = true;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "openreg: a block of device memory is lost: %s\n",
                 error.what_without_backtrace());
  }
  return uses;
}

bool PendingFrees::order(const Block& block, const Uses& uses) noexcept {
  const OpenRegStream& stream = *block.stream;
  if (!uses.is_complete || !uses.destroyed_streams.empty() || !stream.isAlive() ||
      stream.isCapturing()) {
    return false;
  }
  return std::all_of(uses.events.begin(), uses.events.end(), [&](const auto& use) {
    return orStreamWaitEvent(stream.stream(), use.second->event(), 0) == orSuccess;
  });
}

void PendingFrees::watch(Block* block, Uses uses) {
  if (!uses.is_complete) {
    return;
  }
  block->extras->used_on.clear();
  block->pending_uses = static_cast<int>(uses.events.size() + uses.destroyed_streams.size());
  for (auto& [stream, event] : uses.events) {
    watched_[stream].emplace_back(std::move(event), block);
  }
  for (const OpenRegStream& stream : uses.destroyed_streams) {
    orphans_.emplace_back(stream, block);
  }
}

std::vector<Block*> PendingFrees::takeFinished() {
  std::vector<Block*> finished;
  const auto end_use = [&](Block* block) {
    // The last use is removed when the block becomes free, not here: its neighbors would merge with
    // it.
    if (block->pending_uses == 1) {
      finished.push_back(block);
    } else {
      --block->pending_uses;
    }
  };
  const RelaxedCaptureGuard relaxed;
  for (auto entry = watched_.begin(); entry != watched_.end();) {
    auto& queue = entry->second;
    while (!queue.empty() && queue.front().first->isComplete()) {
      end_use(queue.front().second);
      queue.pop_front();
    }
    entry = queue.empty() ? watched_.erase(entry) : std::next(entry);
  }
  std::erase_if(orphans_, [&](const auto& orphan) {
    const bool has_ended = orphan.first.hasEnded();
    if (has_ended) {
      end_use(orphan.second);
    }
    return has_ended;
  });
  return finished;
}

std::vector<PendingFrees::EventRef> PendingFrees::latestEvents() const {
  std::vector<EventRef> events;
  for (const auto& [stream, queue] : watched_) {
    events.push_back(queue.back().first);
  }
  return events;
}

}  // namespace c10::openreg
