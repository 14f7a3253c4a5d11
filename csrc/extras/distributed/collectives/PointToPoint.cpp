// Messages from one rank to another.
//
// Note [Messages]
// A message is a header with its size, followed by its bytes after the receiver has checked the
// size: Gloo ends the process if a message is longer than its receive buffer. Header and bytes have
// different tags, both derived from the user's.
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <cstring>

#include "csrc/extras/distributed/collectives/Bytes.h"
#include "csrc/extras/distributed/collectives/Collectives.h"
#include "csrc/extras/distributed/transport/StageGate.h"

namespace at::openreg {
namespace {

constexpr int kLastTag = (INT32_MAX - Transport::kFirstFreeTag) / 2 - 1;

int headerTag(int tag) { return Transport::kFirstFreeTag + 2 * tag; }
int payloadTag(int tag) { return headerTag(tag) + 1; }

void checkTag(CollectiveKind kind, int tag) {
  TORCH_CHECK_VALUE(tag >= 0 && tag <= kLastTag, nameOf(kind), ": expected a tag from 0 to ",
                    kLastTag, ", got ", tag);
}

void checkPeer(CollectiveKind kind, Membership group, int peer) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < group.size && peer != group.rank, nameOf(kind),
                    ": expected another rank of the group, from 0 to ", group.size - 1, ", got ",
                    peer);
}

Tensor headerMessage() {
  return at::zeros({static_cast<int64_t>(sizeof(Header))}, at::TensorOptions().dtype(kByte));
}

GlooWork postSend(Exchange& calls, const Tensor& bytes, int rank, int tag) {
  return calls.post([&](c10d::Backend& gloo) {
    std::vector<Tensor> tensors{bytes};
    return gloo.send(tensors, rank, tag);
  });
}

GlooWork postReceive(Exchange& calls, const Tensor& bytes, int rank, int tag) {
  return calls.post([&](c10d::Backend& gloo) {
    std::vector<Tensor> tensors{bytes};
    return rank < 0 ? gloo.recvAnysource(tensors, tag) : gloo.recv(tensors, rank, tag);
  });
}

// An error names the message that was not exchanged.
void waitFor(Exchange& calls, const GlooWork& work, const std::string& activity) {
  try {
    calls.wait(work);
  } catch (const TransportError& error) {
    throw TransportError(c10::str(error.what(), " while ", activity), error.gloo_text);
  }
}

std::string sending(int destination, int tag) {
  return c10::str("sending the message with tag ", tag, " to rank ", destination);
}

std::string receiving(int source, int tag) {
  return source < 0 ? c10::str("waiting for a message with tag ", tag, " from any rank")
                    : c10::str("waiting for the message with tag ", tag, " from rank ", source);
}

}  // namespace

Collective send(Membership group, const Tensor& tensor, int destination, int tag) {
  Collective collective = describe(CollectiveKind::Send, tensor, Access::Use::Read);
  checkTag(CollectiveKind::Send, tag);
  checkPeer(CollectiveKind::Send, group, destination);
  collective.begin = [alias = TensorAlias(tensor), destination,
                      tag](Exchange& calls) -> Collective::Finish {
    const Tensor whole = alias.tensor();
    const Tensor plain = asPacked(whole);
    Header header;
    header.bytes_to = static_cast<int64_t>(plain.nbytes());
    const Tensor message = headerMessage();
    std::memcpy(message.mutable_data_ptr(), &header, sizeof(header));
    const GlooWork first = postSend(calls, message, destination, headerTag(tag));
    const GlooWork second =
        plain.numel() > 0 ? postSend(calls, bytesOf(plain), destination, payloadTag(tag)) : first;
    return [plain, first, second, destination, tag](Exchange& own) {
      waitFor(own, first, sending(destination, tag));
      if (second != first) {
        waitFor(own, second, sending(destination, tag));
      }
    };
  };
  return collective;
}

Collective receive(Membership group, const Tensor& tensor, int source, int tag) {
  Collective collective = describe(CollectiveKind::Receive, tensor, Access::Use::Written);
  checkTag(CollectiveKind::Receive, tag);
  if (source >= 0) {
    checkPeer(CollectiveKind::Receive, group, source);
  }
  collective.begin = [alias = TensorAlias(tensor), source,
                      tag](Exchange& calls) -> Collective::Finish {
    const Tensor message = headerMessage();
    const GlooWork first = postReceive(calls, message, source, headerTag(tag));
    return [=](Exchange& own) {
      waitFor(own, first, receiving(source, tag));
      StageGate::instance().pass(Stage::Heard);
      const int sender = source >= 0 ? source : first->sourceRank();
      const Header header = Header::read(message.const_data_ptr(), message.nbytes());
      if (!header.isComplete() || header.state != Header::Ready) {
        throw TransportError(c10::str("rank ", sender, " sent an invalid header with tag ", tag));
      }
      const RecvBuffer buffer(alias.tensor());
      const auto expected = static_cast<int64_t>(buffer.plain().nbytes());
      if (header.bytes_to != expected) {
        throw TransportError(c10::str("rank ", sender, " sent ", header.bytes_to,
                                      " bytes with tag ", tag, ", but this rank expects ",
                                      expected));
      }
      if (expected > 0) {
        waitFor(own, postReceive(own, buffer.bytes(), sender, payloadTag(tag)),
                receiving(sender, tag));
      }
      buffer.complete();
      own.source_rank = sender;
    };
  };
  return collective;
}

Collective messageToSelf(const Tensor& sent, const Tensor& received) {
  TORCH_CHECK_VALUE(
      sent.nbytes() == received.nbytes(), nameOf(CollectiveKind::Send),
      ": expected a message of this rank to itself to be sent and received with the same "
      "size, got ",
      sent.nbytes(), " and ", received.nbytes(), " bytes");
  Collective collective = describe(CollectiveKind::Send, sent, Access::Use::Read);
  addTensor(collective, received, Access::Use::Written);
  collective.begin = [from = TensorAlias(sent),
                      to = TensorAlias(received)](Exchange& /*calls*/) -> Collective::Finish {
    return [from, to](Exchange& /*own*/) {
      const RecvBuffer buffer(to.tensor());
      buffer.bytes().copy_(bytesOf(asPacked(from.tensor())));
      buffer.complete();
    };
  };
  return collective;
}

}  // namespace at::openreg
