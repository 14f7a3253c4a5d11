// A Gloo process group, as the workers of streams use it.
//
// Note [Gloo]
// c10d's Gloo backend moves the bytes. It is held, not derived from: torch ships no headers of
// Gloo. Python makes it, and this class calls it by c10d's interface. What that lacks is added
// here:
//   - Calls are numbered when they are posted, without a lock: posting takes one.
//   - Nothing cancels a call. But a receive that times out makes Gloo close all connections of the
//     instance, which ends every call on it, here with an error and on the other ranks with another
//     one. close() does that on purpose. So no thread stays behind in Gloo, its memory is free
//     again, and the instance can be destroyed.
//   - It trusts the other ranks; see Note [Agreement].
//
// Note [Goodbye]
// A rank that has completed its last operation may be ahead of the others: what it sent last may
// still be in its queue or in a socket, and a socket that is closed too early loses it. So a rank
// that leaves in order sends a message to each other one and waits until Gloo has delivered it,
// before it closes the connections. The receives for these messages are posted with the group, one
// for each other rank, and each of them from any rank. Gloo announces such a receive to no rank;
// its thread answers when a message is announced. As the bytes of a connection are read in order,
// the answer says that all bytes before the announcement have been read. No program and no stream
// of the other rank has a part in that: it may compute, be in the middle of an operation, or
// destroy its group much later or never. It needs no connection for what it has read: that the
// receive for a later header cannot be posted any more is an error of that later operation.
//
// Threads: any thread may call any function, but for those that need the turn. Nothing here takes
// the GIL; what waits must not be called with it.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/distributed/Contract.h"

namespace at::openreg {

using GlooWork = c10::intrusive_ptr<c10d::Work>;
using Deadline = std::chrono::steady_clock::time_point;

// Why an exchange with other ranks cannot go on.
class TransportError : public std::runtime_error {
 public:
  // `cause` is ours, `gloo` what Gloo said, if it did.
  explicit TransportError(const std::string& cause, std::string gloo = "")
      : std::runtime_error(cause), gloo_text(std::move(gloo)) {}

  const std::string gloo_text;
};

class Transport {
 public:
  // Messages with tags below this one are its own.
  static constexpr int kFirstFreeTag = 4;

  // Posts receives to all other ranks.
  explicit Transport(c10::intrusive_ptr<c10d::Backend> gloo);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Calls Gloo. The tensors of the call stay as they are until its work is over.
  // Errors: TransportError if the connections are closed, and what Gloo throws.
  template <typename Call>
  GlooWork post(Call&& call) OPENREG_EXCLUDES(posting_) {
    const c10::openreg::Lock lock(posting_);
    checkOpen();
    return call(*gloo_);
  }

  // Waits for the work of a call.
  // Errors: TransportError; if the time is over, the connections are closed, or will be.
  static void wait(const GlooWork& work, Deadline deadline);

  // Held from the agreement on an operation to its end: operations take turns.
  c10::openreg::Mutex& turn() OPENREG_THREAD_ANNOTATION(lock_returned(turn_)) { return turn_; }

  // See Note [Agreement] and Note [Eager collectives]. `eager` are the bytes for each other rank,
  // at most kEagerBytes. Returns the bytes of each rank, `eager` for its own; they stay as they are
  // until the next agreement.
  // Errors: TransportError, which says who differs in what, who has failed, or who has not come.
  std::vector<Tensor> agree(c10::ArrayRef<Contract> contracts, Deadline deadline,
                            const Tensor& eager = {}) OPENREG_REQUIRES(turn_);

  // What another rank has said about its failure, for an error that looks like its consequence.
  // Waits a moment for that. Empty if nobody said anything.
  std::string reportOfOthers() noexcept OPENREG_EXCLUDES(posting_);

  // Tells the other ranks why this one has failed, as far as they listen, and closes the
  // connections. After that, every call of post() and wait() ends with an error.
  void fail(const std::string& text) noexcept OPENREG_EXCLUDES(posting_);

  // See Note [Goodbye]. Waits until the other ranks have read all that this one has sent, or have
  // closed their connections. Returns the ranks of which neither is known when the time is over;
  // the connections are closed then. Operations of this rank must be over.
  std::vector<int> sayGoodbye(Deadline deadline) noexcept OPENREG_EXCLUDES(posting_);

  // Closes the connections. Later calls do nothing.
  void close() noexcept OPENREG_EXCLUDES(posting_);

  bool isClosed() const { return is_closed_.load(); }

 private:
  // A header on its way, with the bytes behind it.
  struct Message {
    Tensor bytes;
    GlooWork work;
    std::string error;  // why there is no work, in words of Gloo
  };
  // The exchange of headers with one other rank. The messages are used in turns, by number.
  struct Peer {
    std::array<Message, 2> incoming;
    std::array<Message, 2> outgoing;
    Tensor eager;           // what came behind the last header
    bool has_come = false;  // to the operation that is being agreed on
  };

  // Whether the header is there, of a message that nobody has waited for yet.
  static bool hasArrived(const Message& message);

  void checkOpen() const;
  void postReceive(int peer, Message& message);
  void sendHeader(int peer, Message& message, const Header& header, const Tensor& eager,
                  Deadline deadline);
  void agreeWith(int peer, const Header& own, Deadline deadline);
  // Why the connection to another rank has ended, as far as this one knows.
  std::string describeEnd(int peer) const;
  std::string missingRanks() const;

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const int rank_;
  const int size_;
  c10::openreg::Mutex turn_ OPENREG_ACQUIRED_BEFORE(posting_);
  c10::openreg::Mutex posting_;
  std::atomic<bool> is_closed_{false};
  std::vector<Peer> peers_;           // changed with the turn
  std::vector<Message> goodbyes_;     // of other ranks, in no order
  std::vector<Tensor> last_words_;    // headers of a failure, on their way
  std::vector<GlooWork> last_works_;  // of these
  uint64_t next_number_ = 0;          // of headers; changed with the turn
};

// The calls of one run of an operation. Before its end, all of them are over, one way or the other:
// memory that Gloo might write to belongs to somebody else later.
class Exchange {
 public:
  Exchange(Transport& transport, Deadline deadline) : transport_(transport), deadline_(deadline) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  template <typename Call>
  GlooWork post(Call&& call) {
    works_.push_back(transport_.post(std::forward<Call>(call)));
    return works_.back();
  }

  // Of a call that is over, nothing is left to be waited for.
  void wait(const GlooWork& work);

  // What is left of the time, for options of Gloo's calls, and more: the worker looks at the clock.
  std::chrono::milliseconds glooTimeout() const;

  Transport& transport() { return transport_; }

  int source_rank = -1;  // of a message from anybody

 private:
  Transport& transport_;
  const Deadline deadline_;
  std::vector<GlooWork> works_;
};

}  // namespace at::openreg
