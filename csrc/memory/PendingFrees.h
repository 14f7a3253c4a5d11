// Blocks that were freed while streams that record_stream named may still use them.
//
//   add          the block is nobody's; its uses are not known yet
//   recordUses   puts an event on each of its streams
//   watch        the block waits for these
//   takeFinished it may be reused
//
// Not thread-safe, but for recordUses().
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

  // The uses of a block. A stream that was destroyed takes no event, but tells when it has ended.
  struct Uses {
    std::vector<std::pair<OpenRegStream, EventRef>> events;
    std::vector<OpenRegStream> destroyed_streams;
    bool is_complete = false;  // else one could not be recorded
  };

  bool isEmpty() const { return unrecorded_.empty() && watched_.empty() && orphans_.empty(); }

  // Whether takeRecordable() could return something, now or later.
  bool hasUnrecorded() const { return !unrecorded_.empty(); }

  // Takes a freed block that other streams use.
  void add(Block* block);

  // Returns the added blocks of which no stream captures, for recordUses() and watch(). An event
  // recorded on a capturing stream would be part of its graph and say nothing to the host.
  std::vector<Block*> takeRecordable();

  // Records the uses of a block that takeRecordable() returned. Needs no lock, and is to be called
  // without any: as every submission it waits if a stream's queue is full.
  static Uses recordUses(Block* block) noexcept;

  // Lets the block wait for its uses. If they are not complete, nobody knows when they end, and
  // the block is never free again.
  void watch(Block* block, Uses uses);

  // Returns the blocks whose last use has ended. Waits for nothing.
  std::vector<Block*> takeFinished();

  // The latest event of each stream. Once they are complete, so are all others.
  std::vector<EventRef> latestEvents() const;

 private:
  std::vector<Block*> unrecorded_;
  std::unordered_map<OpenRegStream, std::deque<std::pair<EventRef, Block*>>> watched_;
  std::vector<std::pair<OpenRegStream, Block*>> orphans_;  // uses of destroyed streams
};

}  // namespace c10::openreg
