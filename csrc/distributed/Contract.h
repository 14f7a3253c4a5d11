// What the ranks of a group have to agree on before bytes of an operation travel.
//
// Note [Agreement]
// Gloo matches messages by their order alone. Ranks that come with other operations or other sizes
// would get wrong numbers, or the end of the process. So each operation begins with a header from
// each rank to each other one: what it is about to do, how many bytes it sends there, and how many
// it expects from there. Data follows only if every header fits its own. As the headers of a pair
// of ranks travel in order, the check also finds ranks that have come to another operation. A rank
// whose group has failed sends the reason in place of its next header. Receives for the next two
// headers are posted in advance: who has the header of a rank knows that it is ready for another
// one, which so is a single message.
//
// Note [Eager collectives]
// The data of a small collective travels behind the header, in the same message, and no call of
// Gloo follows. That is for collectives whose sizes all ranks know, so that all choose the same,
// and for reductions whose result does not depend on Gloo's order of additions.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

enum class CollectiveKind : uint32_t {
  AllReduce,
  Broadcast,
  Reduce,
  AllGather,
  Gather,
  Scatter,
  ReduceScatter,
  AllToAll,
  Send,
  Receive,
  Barrier,
  MonitoredBarrier,
  Coalesced,
};

constexpr size_t kCollectiveKindCount = static_cast<size_t>(CollectiveKind::Coalesced) + 1;

// As torch.distributed calls it, such as "all_reduce".
const char* nameOf(CollectiveKind kind);

// One collective, as a rank sees it.
struct Contract {
  CollectiveKind kind = CollectiveKind::Barrier;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  int reduce_op = -1;          // a c10d::ReduceOp, -1 if it does not reduce
  int root = -1;               // -1 if it has none
  std::vector<int64_t> to;     // bytes for each rank; empty: none for any
  std::vector<int64_t> from;   // bytes from each rank; empty: none from any
  std::vector<int64_t> sizes;  // of the first tensor, for texts

  int64_t bytesTo(int rank) const { return to.empty() ? 0 : to[rank]; }
  int64_t bytesFrom(int rank) const { return from.empty() ? 0 : from[rank]; }

  // Such as "[4, 4] of float32".
  std::string describeTensors() const;
};

// docs: distributed-header
// What one rank tells another; sent as it is, between ranks that have agreed on the version.
struct OPENREG_EXPORT Header {
  static constexpr int kVersion = 1;  // raised with every change of what messages mean
  static constexpr uint64_t kMagic = 0x6f63636c2d686431;
  enum State : uint32_t { Ready = 1, Failed = 2, Leaving = 3 };

  uint64_t magic = kMagic;
  uint32_t state = Ready;
  uint32_t kind = 0;
  int32_t dtype = -1;  // -1: of no concern
  int32_t reduce_op = -1;
  int32_t root = -1;    // of a rank that is leaving: the rank
  uint32_t count = 0;   // of collectives in it
  uint64_t number = 0;  // how many headers came before it
  int64_t bytes_to = 0;
  int64_t bytes_from = 0;
  uint64_t digest_to = 0;    // of all collectives in it, with the bytes to the other rank
  uint64_t digest_from = 0;  // the same with the bytes from there
  std::array<char, 432> text{};
  uint64_t end = kMagic;  // the last to arrive

  // Cuts what is too long.
  void setText(const std::string& value);

  // What the bytes of a message say, of which the rest is zeros if there are fewer. The text ends.
  static Header read(const void* bytes, size_t size);
  // Whether it is a header to its end, of a state that there is.
  bool isComplete() const;
  // The text, as UTF-8 in any case.
  std::string readText() const;
};
// docs: end
static_assert(sizeof(Header) == 512);

// What one rank can send to another one with the header. See Note [Eager collectives].
constexpr int64_t kEagerBytes = 1536;

// The header of an operation for the rank `peer`.
Header makeHeader(c10::ArrayRef<Contract> contracts, uint64_t number, int peer);

// What makes it impossible to go on with the header that the rank `peer` has sent, in words; empty
// if the two fit.
OPENREG_EXPORT std::string findFault(const Header& own, const Header& other, int peer);

}  // namespace at::openreg
