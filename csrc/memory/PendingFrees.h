// Freed blocks that may still be in use by streams that record_stream named.
//
//   add           the block has no owner; its pending uses are not recorded yet
//   recordUses    records an event on each of its streams
//   watch         the block waits for these events
//   takeFinished  returns blocks that may be reused
//
// Not thread-safe, except for recordUses().
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/memory/BlockPool.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

class PendingFrees {
 public:
  using EventRef = std::shared_ptr<OpenRegEvent>;

  // The pending uses of a block. No event can be recorded on a destroyed stream, but its end can be
  // queried.
  struct Uses {
    std::vector<std::pair<OpenRegStream, EventRef>> events;
    std::vector<OpenRegStream> destroyed_streams;
    bool is_complete = false;  // false: one could not be recorded
  };

  bool isEmpty() const { return unrecorded_.empty() && watched_.empty() && orphans_.empty(); }

  // Whether takeRecordable() can return a block, now or later.
  bool hasUnrecorded() const { return !unrecorded_.empty(); }

  // Adds a freed block that other streams use.
  void add(Block* block);

  // Returns the added blocks of which no stream captures, for recordUses() and watch(). An event
  // recorded on a capturing stream would become part of its graph, and the host could not query it.
  std::vector<Block*> takeRecordable();

  // Records the uses of a block that takeRecordable() returned. Call without a lock held: like
  // every submission, it waits if a stream's queue is full.
  static Uses recordUses(Block* block) noexcept;

  // Makes the block's own stream wait for its uses, so that it may be reused at once. Returns
  // whether that is possible. Call without a lock held.
  static bool order(const Block& block, const Uses& uses) noexcept;

  // Makes the block wait for its uses. If they are incomplete, their end cannot be detected, and
  // the block never becomes free again.
  void watch(Block* block, Uses uses);

  // Returns the blocks whose last use has ended. Never waits.
  std::vector<Block*> takeFinished();

  // The latest event of each stream. When these are complete, all others are.
  std::vector<EventRef> latestEvents() const;

 private:
  std::vector<Block*> unrecorded_;
  std::unordered_map<OpenRegStream, std::deque<std::pair<EventRef, Block*>>> watched_;
  std::vector<std::pair<OpenRegStream, Block*>> orphans_;  // uses of destroyed streams
};

}  // namespace c10::openreg
