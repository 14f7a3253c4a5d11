// The headers with which the ranks of a group check that they run the same operation.
//
// Note [Agreement]
// Gloo matches messages by their order alone. If ranks issue different operations or sizes, Gloo
// returns wrong numbers or ends the process. So each operation begins with a header from each rank
// to every other rank. It describes the operation, the number of bytes it sends to that rank, and
// the number of bytes it expects from it. Data follows only if all headers match. Headers of a pair
// of ranks arrive in order, so the check also finds ranks that are at different operations. A rank
// whose group has failed sends the reason in place of its next header. Receives for the next two
// headers are posted in advance. The arrival of a header therefore shows that its sender is ready
// for the next one, and one message per operation is enough.
//
// Note [Eager collectives]
// The data of a small collective is sent behind the header, in the same message, and no further
// call of Gloo is needed. This applies to collectives whose sizes are known to all ranks, so that
// all ranks make the same choice, and to reductions whose result does not depend on the order of
// additions.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// X(kind, its name in torch.distributed). Headers have the place of a kind here, so the order is a
// part of the format of messages.
#define OPENREG_COLLECTIVES(X)             \
  X(AllReduce, "all_reduce")               \
  X(Broadcast, "broadcast")                \
  X(Reduce, "reduce")                      \
  X(AllGather, "all_gather")               \
  X(Gather, "gather")                      \
  X(Scatter, "scatter")                    \
  X(ReduceScatter, "reduce_scatter")       \
  X(AllToAll, "all_to_all")                \
  X(Send, "send")                          \
  X(Receive, "recv")                       \
  X(Barrier, "barrier")                    \
  X(MonitoredBarrier, "monitored_barrier") \
  X(Coalesced, "coalesced")

enum class CollectiveKind : uint32_t {
#define OPENREG_COLLECTIVE_KIND(kind, name) kind,
  OPENREG_COLLECTIVES(OPENREG_COLLECTIVE_KIND)
#undef OPENREG_COLLECTIVE_KIND
};

constexpr size_t kCollectiveKindCount = static_cast<size_t>(CollectiveKind::Coalesced) + 1;

// The name in torch.distributed, such as "all_reduce".
const char* nameOf(CollectiveKind kind);

// The signature of one collective on one rank: kind, reduction, root, and bytes for and from each
// rank.
struct CollectiveSignature {
  CollectiveKind kind = CollectiveKind::Barrier;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  int reduce_op = -1;          // a c10d::ReduceOp, -1 if it does not reduce
  int root = -1;               // -1 if it has no root
  std::vector<int64_t> to;     // bytes for each rank; empty: none
  std::vector<int64_t> from;   // bytes from each rank; empty: none
  std::vector<int64_t> sizes;  // of the first tensor, for error texts

  int64_t bytesTo(int rank) const { return to.empty() ? 0 : to[rank]; }
  int64_t bytesFrom(int rank) const { return from.empty() ? 0 : from[rank]; }

  // Such as "[4, 4] of float32".
  std::string describeTensors() const;
};

// docs: distributed-header
// The header of an operation. Ranks send it as raw bytes, after they have agreed on the version.
struct OPENREG_EXPORT Header {
  static constexpr int kVersion = 1;  // incremented with every change of the format's meaning
  static constexpr uint64_t kMagic = 0x6f63636c2d686431;
  enum State : uint32_t { Ready = 1, Failed = 2, Leaving = 3 };

  uint64_t magic = kMagic;
  uint32_t state = Ready;
  uint32_t kind = 0;
  int32_t dtype = -1;  // -1: not compared
  int32_t reduce_op = -1;
  int32_t root = -1;    // of a leaving rank: its number
  uint32_t count = 0;   // number of collectives
  uint64_t number = 0;  // number of earlier headers
  int64_t bytes_to = 0;
  int64_t bytes_from = 0;
  uint64_t digest_to = 0;    // of all collectives, with the bytes to the other rank
  uint64_t digest_from = 0;  // of all collectives, with the bytes from it
  std::array<char, 432> text{};
  uint64_t end = kMagic;  // arrives last

  // Truncates a text that is too long.
  void setText(const std::string& value);

  // Reads the bytes of a message. Missing bytes are zeros. The text is always null-terminated.
  static Header read(const void* bytes, size_t size);
  // Whether the header is complete and its state is valid.
  bool isComplete() const;
  // The text, with invalid UTF-8 replaced.
  std::string readText() const;
};
// docs: end
static_assert(sizeof(Header) == 512);

// The number of data bytes that fit behind a header. See Note [Eager collectives].
constexpr int64_t kEagerBytes = 1536;

// The header of an operation for the rank `peer`.
Header makeHeader(c10::ArrayRef<CollectiveSignature> signatures, uint64_t number, int peer);

// Compares the own header with the one received from `peer`. Returns why the two do not match, or
// an empty string if they match.
OPENREG_EXPORT std::string findFault(const Header& own, const Header& other, int peer);

}  // namespace at::openreg
