#include "csrc/extras/distributed/transport/CollectiveSignature.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc/core/Digest.h"
#include "csrc/extras/distributed/transport/Utf8.h"

namespace at::openreg {
namespace {

// The dtype matters only to reductions; other collectives compare bytes.
int32_t dtypeThatMatters(const CollectiveSignature& signature) {
  return signature.reduce_op < 0 ? -1 : static_cast<int32_t>(signature.dtype);
}

uint64_t digest(c10::ArrayRef<CollectiveSignature> signatures, int peer, bool is_to) {
  c10::openreg::Digest sum;
  for (const CollectiveSignature& signature : signatures) {
    sum.add(static_cast<uint64_t>(signature.kind));
    sum.add(static_cast<uint64_t>(dtypeThatMatters(signature)));
    sum.add(static_cast<uint64_t>(signature.reduce_op));
    sum.add(static_cast<uint64_t>(signature.root));
    sum.add(static_cast<uint64_t>(is_to ? signature.bytesTo(peer) : signature.bytesFrom(peer)));
  }
  return sum.value();
}

std::string nameOfKind(uint32_t kind) {
  return kind < kCollectiveKindCount ? nameOf(static_cast<CollectiveKind>(kind)) : "another";
}

// Also accepts values sent by another rank, which may be invalid.
std::string dtypeName(int32_t dtype) {
  if (dtype < 0 || dtype >= static_cast<int32_t>(c10::ScalarType::NumOptions)) {
    return dtype == -1 ? "none" : "another";
  }
  return std::string(c10::getDtypeNames(static_cast<c10::ScalarType>(dtype)).first);
}

const char* reduceOpName(int32_t op) {
  static constexpr std::array kNames = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                        "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return op >= 0 && op < static_cast<int32_t>(kNames.size()) ? kNames[op] : "none";
}

}  // namespace

const char* nameOf(CollectiveKind kind) {
  static constexpr std::array<const char*, kCollectiveKindCount> kNames = {
#define OPENREG_COLLECTIVE_NAME(kind, name) name,
      OPENREG_COLLECTIVES(OPENREG_COLLECTIVE_NAME)
#undef OPENREG_COLLECTIVE_NAME
  };
  return kNames[static_cast<size_t>(kind)];
}

std::string CollectiveSignature::describeTensors() const {
  return c10::str("[", c10::Join(", ", sizes), "] of ", dtypeName(static_cast<int32_t>(dtype)));
}

void Header::setText(const std::string& value) {
  const std::string_view cut = cutUtf8(value, text.size() - 1);
  std::copy(cut.begin(), cut.end(), text.begin());
  text[cut.size()] = '\0';
}

Header Header::read(const void* bytes, size_t size) {
  Header header;
  std::memset(static_cast<void*>(&header), 0, sizeof(header));
  std::memcpy(static_cast<void*>(&header), bytes, std::min(size, sizeof(header)));
  header.text.back() = '\0';
  return header;
}

bool Header::isComplete() const {
  return magic == kMagic && end == kMagic &&
         (state == Ready || state == Failed || state == Leaving);
}

std::string Header::readText() const { return replaceInvalidUtf8(text.data()); }

Header makeHeader(c10::ArrayRef<CollectiveSignature> signatures, uint64_t number, int peer) {
  Header header;
  header.number = number;
  header.count = static_cast<uint32_t>(signatures.size());
  header.kind = static_cast<uint32_t>(CollectiveKind::Coalesced);
  for (const CollectiveSignature& signature : signatures) {
    header.bytes_to += signature.bytesTo(peer);
    header.bytes_from += signature.bytesFrom(peer);
  }
  if (signatures.size() == 1) {
    const CollectiveSignature& signature = signatures.front();
    header.kind = static_cast<uint32_t>(signature.kind);
    header.dtype = dtypeThatMatters(signature);
    header.reduce_op = signature.reduce_op;
    header.root = signature.root;
  }
  header.digest_to = digest(signatures, peer, /*is_to=*/true);
  header.digest_from = digest(signatures, peer, /*is_to=*/false);
  return header;
}

namespace {

std::string findDifference(const Header& own, const Header& other, int peer) {
  const auto differ = [&](const char* what, const auto& mine, const auto& theirs) {
    return c10::str("ranks disagree on the ", what, ": ", mine, " on this rank, ", theirs,
                    " on rank ", peer);
  };
  if (own.number != other.number) {
    return differ("sequence number of the collective", own.number, other.number);
  }
  if (own.kind != other.kind) {
    return differ("operation", nameOfKind(own.kind), nameOfKind(other.kind));
  }
  if (own.count != other.count) {
    return differ("number of coalesced operations", own.count, other.count);
  }
  if (own.root != other.root) {
    return differ("root", own.root, other.root);
  }
  if (own.reduce_op != other.reduce_op) {
    return differ("reduction", reduceOpName(own.reduce_op), reduceOpName(other.reduce_op));
  }
  if (own.dtype != other.dtype) {
    return differ("dtype", dtypeName(own.dtype), dtypeName(other.dtype));
  }
  if (own.bytes_to != other.bytes_from) {
    return c10::str("this rank sends ", own.bytes_to, " bytes to rank ", peer, ", which expects ",
                    other.bytes_from);
  }
  if (own.bytes_from != other.bytes_to) {
    return c10::str("this rank expects ", own.bytes_from, " bytes from rank ", peer,
                    ", which sends ", other.bytes_to);
  }
  if (own.digest_to != other.digest_from || own.digest_from != other.digest_to) {
    return c10::str("the coalesced operations of this rank differ from those of rank ", peer,
                    " in kind, order, dtype or size");
  }
  return "";
}

}  // namespace

std::string findFault(const Header& own, const Header& other, int peer) {
  if (!other.isComplete() || other.state == Header::Leaving) {
    return c10::str("rank ", peer, " sent an invalid header");
  }
  if (other.state == Header::Failed) {
    return c10::str("rank ", peer, " has failed: ", other.readText());
  }
  return findDifference(own, other, peer);
}

}  // namespace at::openreg
