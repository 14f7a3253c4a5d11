// A group's operation on a stream: one collective, or several that were coalesced.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/extras/distributed/GroupState.h"
#include "csrc/extras/distributed/transport/CollectiveSignature.h"
#include "csrc/extras/distributed/transport/Transport.h"
#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {

// A tensor of a collective, and what happens to it.
struct Access {
  enum class Use : uint8_t { Read, Written, Updated };

  Tensor tensor;
  Use use;

  bool isRead() const { return use != Use::Written; }
  bool isWritten() const { return use != Use::Read; }
};

// A collective, prepared by the calling thread. The worker posts the calls of all collectives of an
// operation, then finishes them one by one. A graph does so in every replay, so these objects are
// not modified.
struct Collective {
  using Finish = std::function<void(Exchange&)>;

  CollectiveSignature signature;
  // Posts the calls. Returns a function that waits for them and completes the results.
  std::function<Finish(Exchange&)> begin;
  // Replaces `begin` if this is the operation's only collective; see Note [Eager collectives].
  struct Eager {
    Tensor outgoing;  // bytes for each other rank; undefined: none
    // Receives the bytes of all ranks, including this one.
    std::function<void(const std::vector<Tensor>&)> finish;
  };
  std::function<Eager()> begin_eager;
  // The device of the tensors, and what it accesses: the description that the one visit of a call's
  // tensors makes, for observers, record_stream and profilers. Used only while it is enqueued.
  c10::Device device{c10::openreg::kDeviceType};
  std::vector<Access> accesses;
};

class Operation {
 public:
  struct Setup {
    std::shared_ptr<GroupState> state;
    std::shared_ptr<Transport> transport;
    std::shared_ptr<Completion> completion;
    CollectiveKind kind;
    bool is_agreed;  // all ranks take part: see Note [Agreement]
    bool is_captured;
    bool is_skipped;  // an observer has said so: it completes and exchanges nothing
    uint64_t number;
    std::chrono::milliseconds timeout;
    std::chrono::milliseconds owned_extension;
    std::vector<Collective> collectives;
  };

  explicit Operation(Setup setup);
  // Errors: does not throw. If the operation was enqueued and did not run, the group fails.
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // noteEnqueued() is called before the launch, noteRefused() if the launch failed.
  void noteEnqueued();
  void noteRefused();

  // Runs on the worker. Errors: DistBackendError, after the group has been marked as failed.
  void run();

 private:
  void exchange(Exchange& calls, Deadline deadline);
  void runCollectives(Exchange& calls);
  std::string explain(const std::string& cause, const std::string& gloo_text,
                      std::optional<std::chrono::milliseconds> elapsed) const;

  const Setup setup_;
  const std::vector<CollectiveSignature> signatures_;
  const KernelEnvironment environment_ = KernelEnvironment::current();
  std::atomic<bool> is_enqueued_{false};
  std::atomic<bool> has_run_{false};
};

// The closure that is enqueued for an operation.
struct OperationKernel {
  std::shared_ptr<Operation> operation;

  void operator()() const { operation->run(); }
};

// Such as "occl::all_reduce".
const char* kernelNameOf(CollectiveKind kind);

void launchOperation(const c10::openreg::OpenRegStream& stream, CollectiveKind kind,
                     std::shared_ptr<Operation> operation);

}  // namespace at::openreg
