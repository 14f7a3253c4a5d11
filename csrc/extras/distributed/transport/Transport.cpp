#include "csrc/extras/distributed/transport/Transport.h"

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "csrc/extras/distributed/transport/AbsentPeers.h"
#include "csrc/extras/distributed/transport/StageGate.h"

namespace at::openreg {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kClosingTag = 1;  // of a message that is never sent
constexpr int kHeaderTag = 2;
constexpr int kGoodbyeTag = 3;

// How long a failing rank waits for its reason to be sent to the others, and how long a rank whose
// connection was closed waits to receive such a reason.
constexpr milliseconds kLastWordsTime{200};

// How long Gloo may take to end its calls after the connections were closed. It takes no time
// unless the machine is overloaded.
constexpr milliseconds kSettlingTime{60'000};

// Rounded up, so that the deadline has passed when a wait of this length has timed out.
milliseconds remaining(Deadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  return std::max(left, milliseconds(1));
}

std::vector<int> ranksBut(int rank, int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  ranks.erase(ranks.begin() + rank);
  return ranks;
}

Tensor makeMessage() {
  return at::zeros({static_cast<int64_t>(sizeof(Header)) + kEagerBytes},
                   at::TensorOptions().dtype(kByte));
}

Tensor eagerBytes(const Tensor& message, int64_t count) {
  return message.narrow(0, sizeof(Header), count);
}

void write(const Tensor& message, const Header& header) {
  std::memcpy(message.mutable_data_ptr(), &header, sizeof(header));
}

Header read(const Tensor& message) {
  return Header::read(message.const_data_ptr(), message.nbytes());
}

}  // namespace

Transport::Transport(c10::intrusive_ptr<c10d::Backend> gloo)
    : gloo_(std::move(gloo)),
      rank_(gloo_->getRank()),
      size_(gloo_->getSize()),
      is_alone_(dynamic_cast<const AbsentPeers*>(gloo_.get()) != nullptr),
      others_(is_alone_ ? std::vector<int>() : ranksBut(rank_, size_)),
      peers_(is_alone_ ? 0 : size_) {
  for (const int peer : others_) {
    peers_[peer].eager = makeMessage().narrow(0, 0, kEagerBytes);
    for (size_t i = 0; i < 2; ++i) {
      peers_[peer].outgoing[i].bytes = makeMessage();
      peers_[peer].incoming[i].bytes = makeMessage();
      postReceive(peer, peers_[peer].incoming[i]);
    }
  }
  // After the other receives: a rank whose goodbye was answered may close its connections.
  goodbyes_.resize(others_.size());
  for (Message& message : goodbyes_) {
    message.bytes = makeMessage();
    message.work = post([&](c10d::Backend& backend) {
      std::vector<Tensor> tensors{message.bytes};
      return backend.recvAnysource(tensors, kGoodbyeTag);
    });
  }
}

Transport::~Transport() { close(); }

// Gloo's thread writes the mark.
bool Transport::hasArrived(const Message& message) {
  auto* end = reinterpret_cast<uint64_t*>(static_cast<char*>(message.bytes.mutable_data_ptr()) +
                                          offsetof(Header, end));
  return std::atomic_ref<uint64_t>(*end).load(std::memory_order_acquire) == Header::kMagic;
}

void Transport::checkOpen() const {
  if (isClosed()) {
    throw TransportError("the connections of this rank have been closed");
  }
}

void Transport::wait(const GlooWork& work, Deadline deadline) {
  bool is_done = false;
  try {
    is_done = work->wait(remaining(deadline));
  } catch (const c10::Error& error) {
    throw TransportError(steady_clock::now() >= deadline ? "timed out" : "a connection was closed",
                         error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw TransportError(steady_clock::now() >= deadline ? "timed out" : "a connection was closed",
                         error.what());
  }
  if (!is_done) {
    throw TransportError("the call was interrupted");
  }
}

void Transport::postReceive(int peer, Message& message) {
  // Gloo's thread writes the mark at the end of a header last.
  message.bytes.narrow(0, 0, sizeof(Header)).zero_();
  message.work = post([&](c10d::Backend& gloo) {
    std::vector<Tensor> tensors{message.bytes};
    return gloo.recv(tensors, peer, kHeaderTag);
  });
}

void Transport::sendHeader(int peer, Message& message, const Header& header, const Tensor& eager,
                           Deadline deadline) {
  if (message.work != nullptr) {
    wait(message.work, deadline);
  }
  write(message.bytes, header);
  if (eager.defined()) {
    eagerBytes(message.bytes, eager.numel()).copy_(eager);
  }
  try {
    message.work = post([&](c10d::Backend& gloo) {
      std::vector<Tensor> tensors{message.bytes};
      return gloo.send(tensors, peer, kHeaderTag);
    });
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& error) {
    throw TransportError(describeEnd(peer), error.what());
  }
}

std::vector<Tensor> Transport::agree(c10::ArrayRef<CollectiveSignature> signatures,
                                     Deadline deadline, const Tensor& eager) {
  const uint64_t number = next_number_++;
  std::vector<Header> headers(size_);
  for (const int peer : others_) {
    peers_[peer].has_come = false;
    headers[peer] = makeHeader(signatures, number, peer);
    sendHeader(peer, peers_[peer].outgoing[number % 2], headers[peer], eager, deadline);
  }
  StageGate::instance().pass(Stage::Announced);
  std::vector<Tensor> bytes(size_);
  bytes[rank_] = eager;
  for (const int peer : others_) {
    agreeWith(peer, headers[peer], deadline);
    bytes[peer] = peers_[peer].eager.narrow(0, 0, std::min(headers[peer].bytes_from, kEagerBytes));
  }
  return bytes;
}

void Transport::agreeWith(int peer, const Header& own, Deadline deadline) {
  Peer& other = peers_[peer];
  Message& message = other.incoming[own.number % 2];
  try {
    if (message.work == nullptr) {
      throw TransportError("", message.error);
    }
    wait(message.work, deadline);
  } catch (const TransportError& error) {
    if (steady_clock::now() >= deadline) {
      throw TransportError(c10::str("timed out waiting for ", missingRanks()), error.gloo_text);
    }
    throw TransportError(
        c10::str(describeEnd(peer), " while this rank waited for ", missingRanks()),
        error.gloo_text);
  }
  other.has_come = true;
  StageGate::instance().pass(Stage::Heard);
  const std::string fault = findFault(own, read(message.bytes), peer);
  if (!fault.empty()) {
    throw TransportError(fault);
  }
  other.eager.copy_(eagerBytes(message.bytes, kEagerBytes));
  message.work = nullptr;
  try {
    postReceive(peer, message);
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& error) {
    // Reported by the operation that waits for this header. See Note [Goodbye].
    message.error = error.what();
  }
}

std::string Transport::describeEnd(int peer) const {
  const bool has_left = std::any_of(goodbyes_.begin(), goodbyes_.end(), [&](const Message& one) {
    if (!hasArrived(one)) {
      return false;
    }
    const Header header = read(one.bytes);
    return header.isComplete() && header.state == Header::Leaving && header.root == peer;
  });
  return has_left ? c10::str("rank ", peer, " destroyed the group")
                  : c10::str("the connection to rank ", peer, " was closed");
}

std::string Transport::missingRanks() const {
  std::vector<int> missing;
  for (const int peer : others_) {
    if (!peers_[peer].has_come &&
        std::none_of(peers_[peer].incoming.begin(), peers_[peer].incoming.end(), hasArrived)) {
      missing.push_back(peer);
    }
  }
  return c10::str("ranks [", c10::Join(", ", missing), "]");
}

std::string Transport::reportOfOthers() noexcept {
  try {
    const Deadline deadline = steady_clock::now() + kLastWordsTime;
    do {
      for (const int peer : others_) {
        for (const Message& message : peers_[peer].incoming) {
          if (!hasArrived(message)) {
            continue;
          }
          const Header header = read(message.bytes);
          if (header.isComplete() && header.state == Header::Failed) {
            return c10::str("rank ", peer, " has failed: ", header.readText());
          }
        }
      }
      std::this_thread::sleep_for(milliseconds(2));
    } while (steady_clock::now() < deadline);
  } catch (const std::exception&) {
    // The caller already has an error to report.
  }
  return "";
}

void Transport::fail(const std::string& text) noexcept {
  if (isClosed() || others_.empty()) {
    is_closed_ = true;
    return;
  }
  try {
    Header header;
    header.state = Header::Failed;
    header.setText(text);
    {
      const c10::openreg::Lock lock(posting_);
      for (const int peer : others_) {
        last_words_.push_back(makeMessage());
        write(last_words_.back(), header);
        std::vector<Tensor> tensors{last_words_.back()};
        try {
          last_works_.push_back(gloo_->send(tensors, peer, kHeaderTag));
        } catch (const std::exception&) {
          // This connection was closed; the other ranks still get the reason.
        }
      }
    }
    const Deadline deadline = steady_clock::now() + kLastWordsTime;
    for (const GlooWork& work : last_works_) {
      try {
        wait(work, deadline);
      } catch (const TransportError&) {
        // As above.
      }
    }
  } catch (const std::exception&) {
    // Ranks that do not get the reason see the connection close.
  }
  close();
}

std::vector<int> Transport::sayGoodbye(Deadline deadline) noexcept {
  std::vector<int> silent;
  if (isClosed() || others_.empty()) {
    return silent;
  }
  try {
    Header header;
    header.state = Header::Leaving;
    header.root = rank_;
    const Tensor message = makeMessage();
    write(message, header);
    std::vector<std::pair<int, GlooWork>> works;
    works.reserve(others_.size());  // a posted work must not be lost for want of memory
    for (const int peer : others_) {
      try {
        GlooWork work = post([&](c10d::Backend& gloo) {
          std::vector<Tensor> tensors{message};
          return gloo.send(tensors, peer, kGoodbyeTag);
        });
        works.emplace_back(peer, std::move(work));
      } catch (const std::exception&) {
        // This connection was closed.
      }
    }
    for (const auto& [peer, work] : works) {
      try {
        wait(work, deadline);
      } catch (const TransportError&) {
        if (steady_clock::now() >= deadline) {
          silent.push_back(peer);
        }
      }
    }
  } catch (const std::exception&) {
    // Out of memory. The other ranks see the connection close.
  }
  return silent;
}

// See Note [Gloo]. Only a receive from a connected rank times out, so every rank is tried.
void Transport::close() noexcept {
  if (is_closed_.exchange(true)) {
    return;
  }
  for (const int peer : others_) {
    try {
      const GlooWork work = [&] {
        const c10::openreg::Lock lock(posting_);
        std::vector<Tensor> tensors{makeMessage()};
        return gloo_->recv(tensors, peer, kClosingTag);
      }();
      work->wait(milliseconds(1));
    } catch (const std::exception&) {
      // The expected timeout, or the connection was closed before.
    }
  }
}

void Exchange::wait(const GlooWork& work) {
  Transport::wait(work, deadline_);
  works_.erase(std::remove(works_.begin(), works_.end(), work), works_.end());
}

Exchange::~Exchange() {
  if (works_.empty()) {
    return;
  }
  transport_.close();
  for (const GlooWork& work : works_) {
    try {
      work->wait(kSettlingTime);
    } catch (const std::exception&) {
      // The first error is already being reported.
    }
  }
}

milliseconds Exchange::glooTimeout() const { return remaining(deadline_) + kSettlingTime; }

}  // namespace at::openreg
