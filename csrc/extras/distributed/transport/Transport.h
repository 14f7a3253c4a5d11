// A Gloo process group, for use by the workers of streams.
//
// Note [Gloo]
// c10d's Gloo backend moves the bytes. This class holds it and does not derive from it, because
// torch ships no Gloo headers. Python creates the backend, and this class calls it through c10d's
// interface. It adds what that interface lacks:
//   - Gloo numbers calls when they are posted, without a lock. Here, posting takes a lock.
//   - A call cannot be cancelled. But a receive that times out makes Gloo close all connections of
//     the instance, which ends every call on it with an error, here and on the other ranks. close()
//     causes such a timeout. So no thread stays inside Gloo, its memory can be freed, and the
//     instance can be destroyed.
//   - Gloo trusts the other ranks; see Note [Agreement].
//
// Note [Goodbye]
// A rank that has completed its last operation may be ahead of the others. Its last messages may
// still be in its queue or in a socket, and are lost if the socket is closed too early. So a rank
// that leaves regularly sends a message to every other rank, and waits until Gloo has delivered it,
// before it closes the connections. The receives for these messages are posted when the group is
// created: one for each other rank, each from any rank. Gloo does not announce such a receive to
// other ranks; its thread replies when a message is announced. The bytes of a connection are read
// in order, so the reply shows that all bytes before the announcement were read. This involves
// neither the program nor a stream of the other rank: that rank may compute, be in the middle of an
// operation, or destroy its group much later or never. It does not need the connection for messages
// that it has read. If the receive for a later header cannot be posted any more, that is an error
// of the later operation.
//
// Threads: any thread may call any function, except for those that need the turn. No function takes
// the GIL; functions that wait must be called without it.
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
#include "csrc/extras/distributed/transport/CollectiveSignature.h"

namespace at::openreg {

using GlooWork = c10::intrusive_ptr<c10d::Work>;
using Deadline = std::chrono::steady_clock::time_point;

// The reason why an exchange with other ranks failed.
class TransportError : public std::runtime_error {
 public:
  // `cause` is our text, `gloo` is Gloo's, if there is one.
  explicit TransportError(const std::string& cause, std::string gloo = "")
      : std::runtime_error(cause), gloo_text(std::move(gloo)) {}

  const std::string gloo_text;
};

class Transport {
 public:
  // Tags of messages below this one are reserved.
  static constexpr int kFirstFreeTag = 4;

  // Posts receives to all other ranks, unless they are absent.
  explicit Transport(c10::intrusive_ptr<c10d::Backend> gloo);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // See Note [Absent peers]: there is nothing to agree on.
  bool isAlone() const { return is_alone_; }

  // Calls Gloo. The call's tensors must stay unchanged until its work is complete.
  // Errors: TransportError if the connections are closed, and Gloo's exceptions.
  template <typename Call>
  GlooWork post(Call&& call) OPENREG_EXCLUDES(posting_) {
    const c10::openreg::Lock lock(posting_);
    checkOpen();
    return call(*gloo_);
  }

  // Waits for the work of a call.
  // Errors: TransportError. After a timeout, the connections are closed, or are about to be.
  static void wait(const GlooWork& work, Deadline deadline);

  // Held from the agreement on an operation to its end, so that operations run one at a time.
  c10::openreg::Mutex& turn() OPENREG_THREAD_ANNOTATION(lock_returned(turn_)) { return turn_; }

  // See Note [Agreement] and Note [Eager collectives]. `eager` are the bytes for each other rank,
  // at most kEagerBytes. Returns the bytes of each rank, `eager` for this one; they stay valid
  // until the next agreement.
  // Errors: TransportError, which names the rank that differs and in what, the rank that failed, or
  // the ranks that did not arrive.
  std::vector<Tensor> agree(c10::ArrayRef<CollectiveSignature> signatures, Deadline deadline,
                            const Tensor& eager = {}) OPENREG_REQUIRES(turn_);

  // The failure that another rank has reported, to replace an error that is its consequence. Waits
  // briefly for a report. Empty if there is none.
  std::string reportOfOthers() noexcept OPENREG_EXCLUDES(posting_);

  // Sends the reason of the failure to the other ranks that can be reached, and closes the
  // connections. Afterwards, every call of post() and wait() ends with an error.
  void fail(const std::string& text) noexcept OPENREG_EXCLUDES(posting_);

  // See Note [Goodbye]. Waits until the other ranks have read everything that this one has sent, or
  // have closed their connections. Returns the ranks for which neither happened before the
  // deadline; their connections are closed. The operations of this rank must be complete.
  std::vector<int> sayGoodbye(Deadline deadline) noexcept OPENREG_EXCLUDES(posting_);

  // Closes the connections. Later calls do nothing.
  void close() noexcept OPENREG_EXCLUDES(posting_);

  bool isClosed() const { return is_closed_.load(); }

 private:
  // A header that is being sent or received, with the data behind it.
  struct Message {
    Tensor bytes;
    GlooWork work;
    std::string error;  // Gloo's text, if posting failed
  };
  // The exchange of headers with one other rank. The two messages are used alternately, by number.
  struct Peer {
    std::array<Message, 2> incoming;
    std::array<Message, 2> outgoing;
    Tensor eager;           // the data behind the last header
    bool has_come = false;  // its header for the current operation has arrived
  };

  // Whether the header of a message has arrived. No thread may have waited for the message yet.
  static bool hasArrived(const Message& message);

  void checkOpen() const;
  void postReceive(int peer, Message& message);
  void sendHeader(int peer, Message& message, const Header& header, const Tensor& eager,
                  Deadline deadline);
  void agreeWith(int peer, const Header& own, Deadline deadline);
  // Why the connection to another rank was closed, if the reason is known.
  std::string describeEnd(int peer) const;
  std::string missingRanks() const;

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const int rank_;
  const int size_;
  const bool is_alone_;
  const std::vector<int> others_;  // the other ranks that exist
  c10::openreg::Mutex turn_ OPENREG_ACQUIRED_BEFORE(posting_);
  c10::openreg::Mutex posting_;
  std::atomic<bool> is_closed_{false};
  std::vector<Peer> peers_;           // changed with the turn held
  std::vector<Message> goodbyes_;     // from other ranks, in any order
  std::vector<Tensor> last_words_;    // headers of a failure that are being sent
  std::vector<GlooWork> last_works_;  // the works of these
  uint64_t next_number_ = 0;          // of headers; changed with the turn held
};

// The calls of one run of an operation. The destructor ends all of them, because memory that Gloo
// might write to is reused afterwards.
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

  // Also forgets the call, so that the destructor does not wait for it.
  void wait(const GlooWork& work);

  // The timeout for Gloo's calls: longer than the time left, because the worker checks the
  // deadline.
  std::chrono::milliseconds glooTimeout() const;

  Transport& transport() { return transport_; }

  int source_rank = -1;  // of a message from any rank

 private:
  Transport& transport_;
  const Deadline deadline_;
  std::vector<GlooWork> works_;
};

}  // namespace at::openreg
