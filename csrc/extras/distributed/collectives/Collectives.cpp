#include "csrc/extras/distributed/collectives/Collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "csrc/extras/distributed/collectives/Bytes.h"
#include "csrc/extras/distributed/collectives/Reduction.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using Finish = Collective::Finish;
using Use = Access::Use;

// The dtypes that NCCL supports, and complex numbers, which torch passes to it as pairs.
bool isTaken(c10::ScalarType dtype) {
  switch (dtype) {
    case kFloat:
    case kDouble:
    case kHalf:
    case kBFloat16:
    case kChar:
    case kByte:
    case kInt:
    case kLong:
    case kBool:
    case kComplexFloat:
    case kComplexDouble:
      return true;
    default:
      return c10::isFloat8Type(dtype);
  }
}

void checkRoot(CollectiveKind kind, Membership group, int64_t root) {
  TORCH_CHECK_VALUE(root >= 0 && root < group.size, nameOf(kind), ": expected a rank from 0 to ",
                    group.size - 1, ", got ", root);
}

void checkSameDtype(CollectiveKind kind, const Tensor& one, const Tensor& other) {
  TORCH_CHECK_TYPE(one.scalar_type() == other.scalar_type(), nameOf(kind),
                   ": expected tensors of one dtype, got ",
                   c10::getDtypeNames(one.scalar_type()).first, " and ",
                   c10::getDtypeNames(other.scalar_type()).first);
}

void addAccess(Collective& collective, const Tensor& tensor, Use use) {
  if (collective.accesses.empty()) {
    collective.device = tensor.device();
  }
  TORCH_CHECK_VALUE(tensor.device() == collective.device, nameOf(collective.signature.kind),
                    ": expected tensors on one device, got ", collective.device, " and ",
                    tensor.device());
  collective.accesses.push_back({tensor, use});
}

// A list with a tensor for each rank, of the dtype of `like`. Returns the bytes of each.
std::vector<int64_t> addList(Collective& collective, Membership group, const Tensors& tensors,
                             const Tensor& like, Use use) {
  const CollectiveKind kind = collective.signature.kind;
  TORCH_CHECK_VALUE(tensors.size() == static_cast<size_t>(group.size), nameOf(kind),
                    ": expected a list of ", group.size, " tensors, one for each rank, got ",
                    tensors.size());
  std::vector<int64_t> bytes;
  for (const Tensor& tensor : tensors) {
    addTensor(collective, tensor, use);
    checkSameDtype(kind, like, tensor);
    bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
  }
  return bytes;
}

bool areEqual(const std::vector<int64_t>& sizes) {
  return std::all_of(sizes.begin(), sizes.end(),
                     [&](int64_t size) { return size == sizes.front(); });
}

// The root's list of a gather or scatter. Returns the bytes of each.
std::vector<int64_t> addRootsList(Collective& collective, Membership group, const Tensors& tensors,
                                  const Tensor& like, Use use, const char* list,
                                  const char* other) {
  std::vector<int64_t> bytes = addList(collective, group, tensors, like, use);
  for (const int64_t size : bytes) {
    TORCH_CHECK_VALUE(size == static_cast<int64_t>(like.nbytes()),
                      nameOf(collective.signature.kind), ": expected ", list, " of ", like.numel(),
                      " elements, as the ", other, ", got one of ",
                      size / static_cast<int64_t>(like.element_size()));
  }
  return bytes;
}

std::vector<int64_t> toAll(Membership group, const Tensor& tensor) {
  return std::vector<int64_t>(group.size, static_cast<int64_t>(tensor.nbytes()));
}

std::vector<int64_t> toOne(Membership group, int64_t rank, const Tensor& tensor) {
  std::vector<int64_t> bytes(group.size, 0);
  bytes[rank] = static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// Adds the factor tensor of a PREMUL_SUM, if it is on the device, to the tensors that are read.
void addFactor(Collective& collective, Reduction& reduction) {
  if (isOpenReg(reduction.factorTensor())) {
    addAccess(collective, reduction.factorTensor(), Use::Read);
  }
  reduction.forgetFactorTensor();
}

Finish nothing() {
  return [](Exchange& /*calls*/) {};
}

Tensors bytesOfEach(const std::vector<RecvBuffer>& buffers) {
  Tensors bytes;
  for (const RecvBuffer& buffer : buffers) {
    bytes.push_back(buffer.bytes());
  }
  return bytes;
}

std::vector<RecvBuffer> recvBuffersOf(const std::vector<TensorAlias>& aliases) {
  std::vector<RecvBuffer> buffers;
  for (const Tensor& tensor : tensorsOf(aliases)) {
    buffers.emplace_back(tensor);
  }
  return buffers;
}

// Stores the bytes of each rank in its tensor.
void fill(const std::vector<TensorAlias>& outputs, const Tensors& bytes) {
  const std::vector<RecvBuffer> buffers = recvBuffersOf(outputs);
  for (size_t rank = 0; rank < buffers.size(); ++rank) {
    buffers[rank].bytes().copy_(bytes[rank]);
    buffers[rank].complete();
  }
}

Tensors plainBytesOf(const std::vector<TensorAlias>& aliases) {
  Tensors bytes;
  for (const Tensor& tensor : tensorsOf(aliases)) {
    const Tensor plain = asPacked(tensor);
    bytes.push_back(plain.is_same(tensor) ? bytesOf(plain) : plain.view({-1}).view(kByte));
  }
  return bytes;
}

// The bytes of a tensor to send. They own their memory if they are a copy.
Tensor outgoingBytes(const TensorAlias& alias) { return plainBytesOf({alias}).front(); }

GlooWork postBroadcast(Exchange& calls, const Tensor& bytes, int root) {
  return calls.post([&](c10d::Backend& gloo) {
    Tensors tensors{bytes};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = calls.glooTimeout();
    return gloo.broadcast(tensors, options);
  });
}

GlooWork postAllReduce(Exchange& calls, const Tensor& wire, const Reduction& reduction) {
  return calls.post([&](c10d::Backend& gloo) {
    Tensors tensors{wire};
    c10d::AllreduceOptions options;
    options.reduceOp = reduction.wireOp();
    options.timeout = calls.glooTimeout();
    return gloo.allreduce(tensors, options);
  });
}

GlooWork postReduce(Exchange& calls, const Tensor& wire, const Reduction& reduction, int root) {
  return calls.post([&](c10d::Backend& gloo) {
    Tensors tensors{wire};
    c10d::ReduceOptions options;
    options.reduceOp = reduction.wireOp();
    options.rootRank = root;
    options.timeout = calls.glooTimeout();
    return gloo.reduce(tensors, options);
  });
}

GlooWork postAllToAll(Exchange& calls, Tensor& output, Tensor& input,
                      const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  return calls.post([&](c10d::Backend& gloo) {
    std::vector<int64_t> output_splits = from;
    std::vector<int64_t> input_splits = to;
    c10d::AllToAllOptions options;
    options.timeout = calls.glooTimeout();
    return gloo.alltoall_base(output, input, output_splits, input_splits, options);
  });
}

// Waits for the calls, then completes the receive buffers. Keeps the sent tensors alive until then.
Finish land(std::vector<GlooWork> works, std::vector<RecvBuffer> buffers, Tensors outgoing) {
  return [works = std::move(works), buffers = std::move(buffers),
          outgoing = std::move(outgoing)](Exchange& own) {
    for (const GlooWork& work : works) {
      own.wait(work);
    }
    for (const RecvBuffer& buffer : buffers) {
      buffer.complete();
    }
  };
}

// Whether the data is small enough to be sent behind the header. See Note [Eager collectives].
bool isEager(const Tensor& tensor) {
  return tensor.numel() > 0 && static_cast<int64_t>(tensor.nbytes()) <= kEagerBytes;
}

// A packed copy that owns its memory.
Tensor plainCopy(const Tensor& tensor) {
  Tensor copy = at::empty(tensor.sizes(), tensor.options());
  copy.copy_(tensor);
  return copy;
}

}  // namespace

void checkTensor(CollectiveKind kind, const Tensor& tensor) {
  const char* name = nameOf(kind);
  TORCH_CHECK_VALUE(isOpenReg(tensor), name, ": expected a tensor on a device of type ",
                    c10::openreg::kDeviceType, ", got one on ",
                    tensor.defined() ? tensor.device().str() : "no device");
  TORCH_CHECK_VALUE(tensor.layout() == kStrided, name, ": expected a strided tensor, got one of ",
                    tensor.layout());
  TORCH_CHECK_TYPE(
      isTaken(tensor.scalar_type()) || !c10::openreg::servesCuda(),
      "Input tensor data type is not supported for NCCL process group: ", tensor.scalar_type());
  TORCH_CHECK_TYPE(isTaken(tensor.scalar_type()), name,
                   ": expected a dtype that NCCL supports, got ",
                   c10::getDtypeNames(tensor.scalar_type()).first,
                   "; use tensor.view(torch.uint8) for the same bytes");
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), name,
                    ": expected a tensor that is non-overlapping and dense, got sizes ",
                    tensor.sizes(), " and strides ", tensor.strides(), "; use tensor.contiguous()");
}

const Tensor& singleTensor(CollectiveKind kind, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, nameOf(kind), ": expected one tensor, got ",
                    tensors.size(), "; one process serves one device of a group at a time");
  return tensors.front();
}

Collective describe(CollectiveKind kind, const Tensor& tensor, Use use) {
  Collective collective;
  collective.signature.kind = kind;
  addTensor(collective, tensor, use);
  collective.signature.dtype = tensor.scalar_type();
  collective.signature.sizes = tensor.sizes().vec();
  return collective;
}

void addTensor(Collective& collective, const Tensor& tensor, Use use) {
  checkTensor(collective.signature.kind, tensor);
  addAccess(collective, tensor, use);
}

Collective allReduce(Membership group, const Tensor& tensor, const c10d::ReduceOp& op) {
  constexpr auto kKind = CollectiveKind::AllReduce;
  Collective collective = describe(kKind, tensor, Use::Updated);
  Reduction reduction(kKind, op, tensor.scalar_type(), group.size);
  collective.signature.reduce_op = reduction.op();
  collective.signature.to = collective.signature.from = toAll(group, tensor);
  addFactor(collective, reduction);
  collective.begin = [alias = TensorAlias(tensor), reduction](Exchange& calls) -> Finish {
    const Tensor whole = alias.tensor();
    const Tensor plain = asPacked(whole);
    reduction.prepare(plain);
    if (plain.numel() == 0) {
      return nothing();
    }
    return [=, work = postAllReduce(calls, reduction.wireView(plain), reduction)](Exchange& own) {
      own.wait(work);
      reduction.complete(plain);
      copyBack(plain, whole);
    };
  };
  if (isEager(tensor) && reduction.isOrderFree()) {
    collective.begin_eager = [alias = TensorAlias(tensor), reduction]() -> Collective::Eager {
      const Tensor whole = alias.tensor();
      const Tensor plain = asPacked(whole);
      reduction.prepare(plain);
      const Tensor wire = reduction.wireView(plain);
      return {bytesOf(wire), [=](const Tensors& bytes) {
                Tensor sum = bytes.front().view(wire.scalar_type()).clone();
                for (size_t rank = 1; rank < bytes.size(); ++rank) {
                  reduction.combine(sum, bytes[rank].view(wire.scalar_type()));
                }
                wire.copy_(sum);
                reduction.complete(plain);
                copyBack(plain, whole);
              }};
    };
  }
  return collective;
}

Collective broadcast(Membership group, const Tensor& tensor, int64_t root) {
  constexpr auto kKind = CollectiveKind::Broadcast;
  const bool is_root = root == group.rank;
  Collective collective = describe(kKind, tensor, is_root ? Use::Read : Use::Written);
  checkRoot(kKind, group, root);
  collective.signature.root = static_cast<int>(root);
  (is_root ? collective.signature.to : collective.signature.from) =
      is_root ? toAll(group, tensor) : toOne(group, root, tensor);
  collective.begin = [alias = TensorAlias(tensor), root = static_cast<int>(root),
                      is_root](Exchange& calls) -> Finish {
    if (alias.tensor().numel() == 0) {
      return nothing();
    }
    if (is_root) {
      const Tensor bytes = outgoingBytes(alias);
      return land({postBroadcast(calls, bytes, root)}, {}, {bytes});
    }
    const RecvBuffer buffer(alias.tensor());
    return land({postBroadcast(calls, buffer.bytes(), root)}, {buffer}, {});
  };
  if (isEager(tensor)) {
    collective.begin_eager = [alias = TensorAlias(tensor), root, is_root]() -> Collective::Eager {
      if (is_root) {
        return {outgoingBytes(alias), [](const Tensors& /*bytes*/) {}};
      }
      return {{}, [alias, root](const Tensors& bytes) {
                const RecvBuffer buffer(alias.tensor());
                buffer.bytes().copy_(bytes[root]);
                buffer.complete();
              }};
    };
  }
  return collective;
}

Collective reduce(Membership group, const Tensor& tensor, const c10d::ReduceOp& op, int64_t root) {
  constexpr auto kKind = CollectiveKind::Reduce;
  const bool is_root = root == group.rank;
  Collective collective = describe(kKind, tensor, is_root ? Use::Updated : Use::Read);
  checkRoot(kKind, group, root);
  Reduction reduction(kKind, op, tensor.scalar_type(), group.size);
  collective.signature.root = static_cast<int>(root);
  collective.signature.reduce_op = reduction.op();
  (is_root ? collective.signature.from : collective.signature.to) =
      is_root ? toAll(group, tensor) : toOne(group, root, tensor);
  addFactor(collective, reduction);
  collective.begin = [alias = TensorAlias(tensor), reduction, root = static_cast<int>(root),
                      is_root](Exchange& calls) -> Finish {
    const Tensor whole = alias.tensor();
    // Gloo uses the tensors of the other ranks as scratch memory.
    const Tensor plain = is_root ? asPacked(whole) : plainCopy(whole);
    reduction.prepare(plain);
    if (plain.numel() == 0) {
      return nothing();
    }
    return
        [=, work = postReduce(calls, reduction.wireView(plain), reduction, root)](Exchange& own) {
          own.wait(work);
          if (is_root) {
            reduction.complete(plain);
            copyBack(plain, whole);
          }
        };
  };
  return collective;
}

Collective allGather(Membership group, const Tensors& outputs, const Tensor& input) {
  constexpr auto kKind = CollectiveKind::AllGather;
  Collective collective = describe(kKind, input, Use::Read);
  collective.signature.from = addList(collective, group, outputs, input, Use::Written);
  TORCH_CHECK_VALUE(outputs[group.rank].numel() == input.numel(), nameOf(kKind),
                    ": expected the output for this rank to have as many elements as its input, ",
                    input.numel(), ", got ", outputs[group.rank].numel());
  collective.signature.to = toAll(group, input);
  const bool is_equal = areEqual(collective.signature.from);
  collective.begin = [input = TensorAlias(input), outputs = aliasAll(ITensorListRef(outputs)),
                      group, is_equal](Exchange& calls) -> Finish {
    const std::vector<RecvBuffer> buffers = recvBuffersOf(outputs);
    const Tensor own_bytes = outgoingBytes(input);
    std::vector<GlooWork> works;
    if (is_equal && own_bytes.numel() > 0) {
      works.push_back(calls.post([&](c10d::Backend& gloo) {
        std::vector<Tensors> output_lists{bytesOfEach(buffers)};
        Tensors inputs{own_bytes};
        c10d::AllgatherOptions options;
        options.timeout = calls.glooTimeout();
        return gloo.allgather(output_lists, inputs, options);
      }));
    } else if (!is_equal) {
      // c10d's interface to Gloo has no all_gather of unequal sizes: each rank sends its part to
      // all.
      buffers[group.rank].bytes().copy_(own_bytes);
      for (int rank = 0; rank < group.size; ++rank) {
        const Tensor bytes = buffers[rank].bytes();
        if (bytes.numel() > 0) {
          works.push_back(postBroadcast(calls, bytes, rank));
        }
      }
    }
    return land(std::move(works), buffers, {own_bytes});
  };
  if (isEager(input) && is_equal) {
    collective.begin_eager = [input = TensorAlias(input),
                              outputs = aliasAll(ITensorListRef(outputs))]() -> Collective::Eager {
      return {outgoingBytes(input), [outputs](const Tensors& bytes) { fill(outputs, bytes); }};
    };
  }
  return collective;
}

Collective allGatherIntoTensor(Membership group, const Tensor& output, const Tensor& input) {
  constexpr auto kKind = CollectiveKind::AllGather;
  Collective collective = describe(kKind, input, Use::Read);
  addTensor(collective, output, Use::Written);
  checkSameDtype(kKind, output, input);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * group.size, nameOf(kKind),
                    ": expected an output of ", input.numel() * group.size,
                    " elements, those of the input times the size of the group, got ",
                    output.numel());
  collective.signature.to = collective.signature.from = toAll(group, input);
  collective.begin = [input = TensorAlias(input),
                      output = TensorAlias(output)](Exchange& calls) -> Finish {
    const RecvBuffer buffer(output.tensor());
    if (buffer.plain().numel() == 0) {
      return nothing();
    }
    const Tensor own_bytes = outgoingBytes(input);
    const GlooWork work = calls.post([&](c10d::Backend& gloo) {
      Tensor output_bytes = buffer.bytes();
      Tensor input_bytes = own_bytes;
      c10d::AllgatherOptions options;
      options.timeout = calls.glooTimeout();
      return gloo._allgather_base(output_bytes, input_bytes, options);
    });
    return land({work}, {buffer}, {own_bytes});
  };
  if (isEager(input)) {
    collective.begin_eager = [input = TensorAlias(input),
                              output = TensorAlias(output)]() -> Collective::Eager {
      return {outgoingBytes(input), [output](const Tensors& bytes) {
                const RecvBuffer buffer(output.tensor());
                buffer.bytes().copy_(at::cat(bytes));
                buffer.complete();
              }};
    };
  }
  return collective;
}

Collective gather(Membership group, const Tensors& outputs, const Tensor& input, int64_t root) {
  constexpr auto kKind = CollectiveKind::Gather;
  Collective collective = describe(kKind, input, Use::Read);
  checkRoot(kKind, group, root);
  const bool is_root = root == group.rank;
  if (is_root) {
    collective.signature.from =
        addRootsList(collective, group, outputs, input, Use::Written, "outputs", "input");
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), nameOf(kKind),
                      ": expected no outputs on a rank that is not the root, got ", outputs.size());
  }
  collective.signature.root = static_cast<int>(root);
  collective.signature.to = toOne(group, root, input);
  collective.begin = [input = TensorAlias(input), outputs = aliasAll(ITensorListRef(outputs)),
                      is_root, root = static_cast<int>(root)](Exchange& calls) -> Finish {
    const std::vector<RecvBuffer> buffers = recvBuffersOf(outputs);
    const Tensor own_bytes = outgoingBytes(input);
    if (own_bytes.numel() == 0) {
      return nothing();
    }
    const GlooWork work = calls.post([&](c10d::Backend& gloo) {
      std::vector<Tensors> output_lists;
      if (is_root) {
        output_lists.push_back(bytesOfEach(buffers));
      }
      Tensors inputs{own_bytes};
      c10d::GatherOptions options;
      options.rootRank = root;
      options.timeout = calls.glooTimeout();
      return gloo.gather(output_lists, inputs, options);
    });
    return land({work}, buffers, {own_bytes});
  };
  return collective;
}

Collective scatter(Membership group, const Tensor& output, const Tensors& inputs, int64_t root) {
  constexpr auto kKind = CollectiveKind::Scatter;
  Collective collective = describe(kKind, output, Use::Written);
  checkRoot(kKind, group, root);
  const bool is_root = root == group.rank;
  if (is_root) {
    collective.signature.to =
        addRootsList(collective, group, inputs, output, Use::Read, "inputs", "output");
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), nameOf(kKind),
                      ": expected no inputs on a rank that is not the root, got ", inputs.size());
  }
  collective.signature.root = static_cast<int>(root);
  collective.signature.from = toOne(group, root, output);
  collective.begin = [output = TensorAlias(output), inputs = aliasAll(ITensorListRef(inputs)),
                      is_root, root = static_cast<int>(root)](Exchange& calls) -> Finish {
    const RecvBuffer buffer(output.tensor());
    if (buffer.plain().numel() == 0) {
      return nothing();
    }
    const Tensors input_bytes = plainBytesOf(inputs);
    const GlooWork work = calls.post([&](c10d::Backend& gloo) {
      Tensors outputs{buffer.bytes()};
      std::vector<Tensors> input_lists;
      if (is_root) {
        input_lists.push_back(input_bytes);
      }
      c10d::ScatterOptions options;
      options.rootRank = root;
      options.timeout = calls.glooTimeout();
      return gloo.scatter(outputs, input_lists, options);
    });
    return land({work}, {buffer}, input_bytes);
  };
  return collective;
}

Collective reduceScatter(Membership group, const Tensor& output, const Tensors& inputs,
                         const c10d::ReduceOp& op) {
  constexpr auto kKind = CollectiveKind::ReduceScatter;
  Collective collective = describe(kKind, output, Use::Written);
  collective.signature.to = addList(collective, group, inputs, output, Use::Read);
  TORCH_CHECK_VALUE(inputs[group.rank].numel() == output.numel(), nameOf(kKind),
                    ": expected the input for this rank to have as many elements as its output, ",
                    output.numel(), ", got ", inputs[group.rank].numel());
  Reduction reduction(kKind, op, output.scalar_type(), group.size);
  collective.signature.reduce_op = reduction.op();
  collective.signature.from = toAll(group, output);
  addFactor(collective, reduction);
  collective.begin = [output = TensorAlias(output), inputs = aliasAll(ITensorListRef(inputs)),
                      reduction, group](Exchange& calls) -> Finish {
    // One reduction for each rank, on copies, because Gloo uses them as scratch memory.
    Tensors copies;
    std::vector<GlooWork> works;
    int root = 0;
    for (const Tensor& input : tensorsOf(inputs)) {
      copies.push_back(plainCopy(input));
      reduction.prepare(copies.back());
      if (copies.back().numel() > 0) {
        works.push_back(postReduce(calls, reduction.wireView(copies.back()), reduction, root));
      }
      ++root;
    }
    return [=](Exchange& own) {
      for (const GlooWork& work : works) {
        own.wait(work);
      }
      const Tensor& result = copies[group.rank];
      reduction.complete(result);
      output.tensor().copy_(result.view(output.sizes()));
    };
  };
  return collective;
}

Collective reduceScatterTensor(Membership group, const Tensor& output, const Tensor& input,
                               const c10d::ReduceOp& op) {
  constexpr auto kKind = CollectiveKind::ReduceScatter;
  Collective collective = describe(kKind, output, Use::Written);
  addTensor(collective, input, Use::Read);
  checkSameDtype(kKind, input, output);
  TORCH_CHECK_VALUE(input.numel() == output.numel() * group.size, nameOf(kKind),
                    ": expected an input of ", output.numel() * group.size,
                    " elements, those of the output times the size of the group, got ",
                    input.numel());
  Reduction reduction(kKind, op, output.scalar_type(), group.size);
  collective.signature.reduce_op = reduction.op();
  collective.signature.to = collective.signature.from = toAll(group, output);
  addFactor(collective, reduction);
  collective.begin = [output = TensorAlias(output), input = TensorAlias(input),
                      reduction](Exchange& calls) -> Finish {
    const RecvBuffer buffer(output.tensor());
    if (buffer.plain().numel() == 0) {
      return nothing();
    }
    const Tensor whole = input.tensor();
    const Tensor plain = reduction.changesInput() ? plainCopy(whole) : asPacked(whole);
    reduction.prepare(plain);
    const GlooWork work = calls.post([&](c10d::Backend& gloo) {
      Tensor output_wire = reduction.wireView(buffer.plain());
      Tensor input_wire = reduction.wireView(plain);
      c10d::ReduceScatterOptions options;
      options.reduceOp = reduction.wireOp();
      options.timeout = calls.glooTimeout();
      return gloo._reduce_scatter_base(output_wire, input_wire, options);
    });
    return [=](Exchange& own) {
      own.wait(work);
      reduction.complete(buffer.plain());
      buffer.complete();
    };
  };
  return collective;
}

Collective allToAll(Membership group, const Tensors& outputs, const Tensors& inputs) {
  constexpr auto kKind = CollectiveKind::AllToAll;
  TORCH_CHECK_VALUE(!outputs.empty(), nameOf(kKind), ": expected tensors, got none");
  Collective collective;
  collective.signature.kind = kKind;
  collective.signature.from = addList(collective, group, outputs, outputs.front(), Use::Written);
  collective.signature.to = addList(collective, group, inputs, outputs.front(), Use::Read);
  collective.signature.dtype = inputs.front().scalar_type();
  collective.signature.sizes = inputs.front().sizes().vec();
  collective.begin = [inputs = aliasAll(ITensorListRef(inputs)),
                      outputs = aliasAll(ITensorListRef(outputs)), to = collective.signature.to,
                      from = collective.signature.from](Exchange& calls) -> Finish {
    Tensor input = at::cat(plainBytesOf(inputs));
    const int64_t received_bytes = std::accumulate(from.begin(), from.end(), int64_t{0});
    Tensor output = at::empty({received_bytes}, at::TensorOptions().dtype(kByte));
    const GlooWork work = postAllToAll(calls, output, input, from, to);
    return [=](Exchange& own) {
      own.wait(work);
      fill(outputs, output.split_with_sizes(from));
    };
  };
  return collective;
}

Collective allToAllSingle(Membership group, const Tensor& output, const Tensor& input,
                          const std::vector<int64_t>& output_splits,
                          const std::vector<int64_t>& input_splits) {
  constexpr auto kKind = CollectiveKind::AllToAll;
  Collective collective = describe(kKind, output, Use::Written);
  addTensor(collective, input, Use::Read);
  checkSameDtype(kKind, output, input);
  // The bytes for each rank, computed from the splits of one side.
  const auto bytesFor = [&](const Tensor& tensor, const std::vector<int64_t>& splits,
                            const char* what) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    const auto nbytes = static_cast<int64_t>(tensor.nbytes());
    if (splits.empty()) {
      TORCH_CHECK_VALUE(rows % group.size == 0, nameOf(kKind), ": expected ", what,
                        " rows that can be divided among ", group.size, " ranks, got ", rows);
      return std::vector<int64_t>(group.size, nbytes / group.size);
    }
    TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(group.size), nameOf(kKind),
                      ": expected ", group.size, " ", what, " splits, got ", splits.size());
    int64_t sum = 0;
    std::vector<int64_t> bytes;
    for (const int64_t split : splits) {
      TORCH_CHECK_VALUE(split >= 0, nameOf(kKind), ": expected ", what,
                        " splits of 0 or more, got ", split);
      sum += split;
      bytes.push_back(rows == 0 ? 0 : split * (nbytes / rows));
    }
    TORCH_CHECK_VALUE(sum == rows, nameOf(kKind), ": expected ", what, " splits that add up to ",
                      rows, ", the rows of the tensor, got a sum of ", sum);
    return bytes;
  };
  collective.signature.sizes = input.sizes().vec();
  collective.signature.to = bytesFor(input, input_splits, "input");
  collective.signature.from = bytesFor(output, output_splits, "output");
  collective.begin = [input = TensorAlias(input), output = TensorAlias(output),
                      to = collective.signature.to,
                      from = collective.signature.from](Exchange& calls) -> Finish {
    const RecvBuffer buffer(output.tensor());
    Tensor output_bytes = buffer.bytes();
    Tensor input_bytes = outgoingBytes(input);
    const GlooWork work = postAllToAll(calls, output_bytes, input_bytes, from, to);
    return land({work}, {buffer}, {input_bytes});
  };
  return collective;
}

Collective barrier(CollectiveKind kind, c10::Device device) {
  Collective collective;
  collective.signature.kind = kind;
  collective.device = device;
  collective.begin = [](Exchange& /*calls*/) { return nothing(); };
  return collective;
}

}  // namespace at::openreg
