// Work of a group on a stream: one collective, or several that were coalesced.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/distributed/Contract.h"
#include "csrc/distributed/GroupState.h"
#include "csrc/distributed/Transport.h"
#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {

// A collective as the calling thread has prepared it. The worker posts the calls of all parts of an
// operation, then finishes one after the other. In a graph it does so for every replay: nothing
// here changes.
struct Part {
  using Finish = std::function<void(Exchange&)>;

  Contract contract;
  // Posts calls. What it returns waits for them and completes the results.
  std::function<Finish(Exchange&)> begin;
  // In place of `begin` where it is the only part; see Note [Eager collectives].
  struct Eager {
    Tensor outgoing;  // bytes, for each other rank; undefined: none
    // Given the bytes of each rank, its own ones too.
    std::function<void(const std::vector<Tensor>&)> finish;
  };
  std::function<Eager()> begin_eager;
  // What it accesses, for observers and for record_stream. Only while it is being enqueued.
  std::vector<Tensor> read;
  std::vector<Tensor> written;
};

class Operation {
 public:
  struct Setup {
    std::shared_ptr<GroupState> state;
    std::shared_ptr<Transport> transport;
    std::shared_ptr<Completion> completion;
    CollectiveKind kind;
    bool is_agreed;  // all ranks take part in it: see Note [Agreement]
    bool is_captured;
    uint64_t number;
    std::chrono::milliseconds timeout;
    std::chrono::milliseconds owned_extension;
    std::vector<Part> parts;
  };

  explicit Operation(Setup setup);
  // Errors: none, but if it has been enqueued and never ran, the group fails.
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // It is about to be launched, or that was refused.
  void noteEnqueued();
  void noteRefused();

  // On the worker. Errors: DistBackendError; the group has failed then.
  void run();

 private:
  void exchange(Exchange& calls, Deadline deadline);
  void runParts(Exchange& calls);
  std::string explain(const std::string& cause, const std::string& gloo_text,
                      std::optional<std::chrono::milliseconds> elapsed) const;

  const Setup setup_;
  const std::vector<Contract> contracts_;
  const KernelEnvironment environment_ = KernelEnvironment::current();
  std::atomic<bool> is_enqueued_{false};
  std::atomic<bool> has_run_{false};
};

// The closure of an operation.
struct OperationKernel {
  std::shared_ptr<Operation> operation;

  void operator()() const { operation->run(); }
};

// Such as "occl::all_reduce".
const char* kernelNameOf(CollectiveKind kind);

void launchOperation(const c10::openreg::OpenRegStream& stream, CollectiveKind kind,
                     std::shared_ptr<Operation> operation);

}  // namespace at::openreg
