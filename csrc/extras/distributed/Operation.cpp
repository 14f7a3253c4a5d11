#include "csrc/extras/distributed/Operation.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <iomanip>
#include <sstream>
#include <utility>

#include "csrc/extras/distributed/transport/StageGate.h"

namespace at::openreg {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::array<const char*, kCollectiveKindCount> kKernelNames = {
#define OPENREG_COLLECTIVE_KERNEL(kind, name) "occl::" name,
    OPENREG_COLLECTIVES(OPENREG_COLLECTIVE_KERNEL)
#undef OPENREG_COLLECTIVE_KERNEL
};

std::vector<CollectiveSignature> signaturesOf(const std::vector<Collective>& collectives) {
  std::vector<CollectiveSignature> signatures;
  signatures.reserve(collectives.size());
  for (const Collective& collective : collectives) {
    signatures.push_back(collective.signature);
  }
  return signatures;
}

std::string seconds(milliseconds time) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(time.count()) / 1000.0 << " s";
  return text.str();
}

}  // namespace

Operation::Operation(Setup setup)
    : setup_(std::move(setup)), signatures_(signaturesOf(setup_.collectives)) {}

Operation::~Operation() {
  if (!is_enqueued_ || setup_.is_captured) {
    return;
  }
  if (!has_run_) {
    const std::string text =
        explain("skipped, because an earlier kernel on its stream failed", "", std::nullopt) +
        "\nThe error of that kernel is raised by a call that waits for the stream; look for it "
        "there.";
    setup_.state->failByOperation(text);
    setup_.completion->finish(std::make_exception_ptr(c10::DistBackendError(
                                  {__func__, __FILE__, uint32_t(__LINE__)}, text)),
                              -1);
  }
  setup_.state->endPending();
}

void Operation::noteEnqueued() {
  is_enqueued_ = true;
  if (!setup_.is_captured) {
    setup_.state->beginPending();
  }
}

void Operation::noteRefused() {
  // With OPENREG_LAUNCH_BLOCKING, a launch throws the kernel's error.
  if (!has_run_ && is_enqueued_.exchange(false) && !setup_.is_captured) {
    setup_.state->endPending();
  }
}

void Operation::run() {
  has_run_ = true;
  setup_.completion->begin();
  if (setup_.is_skipped) {
    setup_.state->endExtension(setup_.owned_extension);
    setup_.completion->finish(nullptr, -1);
    return;
  }
  environment_.enter();
  const CpuKernelScope scope;
  const auto start = steady_clock::now();
  const Deadline deadline = start + setup_.timeout;
  Exchange calls(*setup_.transport, deadline);
  try {
    if (setup_.state->hasFailed()) {
      throw TransportError("the group has failed");
    }
    exchange(calls, deadline);
    StageGate::instance().pass(Stage::Finished);
    setup_.state->endExtension(setup_.owned_extension);
    setup_.completion->finish(nullptr, calls.source_rank);
    return;
  } catch (...) {
    const auto elapsed = std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
    std::string cause;
    std::string gloo_text;
    try {
      throw;
    } catch (const TransportError& error) {
      cause = error.what();
      gloo_text = error.gloo_text;
    } catch (const c10::Error& error) {
      cause = error.what_without_backtrace();
    } catch (const std::exception& error) {
      cause = error.what();
    } catch (...) {
      cause = "an exception that is not a std::exception";
    }
    if (setup_.state->hasFailed()) {
      cause = "the group has failed: " + setup_.state->failure();
    } else if (steady_clock::now() < deadline) {
      const std::string report = setup_.transport->reportOfOthers();
      cause = report.empty() ? cause : report;
    }
    const std::string text = explain(cause, gloo_text, elapsed);
    // Before `calls` is destroyed, because its destructor closes the connections.
    setup_.state->failByOperation(text);
    const auto exception = std::make_exception_ptr(
        c10::DistBackendError({__func__, __FILE__, uint32_t(__LINE__)}, text));
    setup_.completion->finish(exception, -1);
    std::rethrow_exception(exception);
  }
}

void Operation::exchange(Exchange& calls, Deadline deadline) {
  if (!setup_.is_agreed || setup_.transport->isAlone()) {
    runCollectives(calls);
    return;
  }
  Transport& transport = *setup_.transport;
  const c10::openreg::Lock turn(transport.turn());
  if (setup_.collectives.size() == 1 && setup_.collectives.front().begin_eager) {
    const Collective::Eager eager = setup_.collectives.front().begin_eager();
    const std::vector<Tensor> bytes = transport.agree(signatures_, deadline, eager.outgoing);
    StageGate::instance().pass(Stage::Agreed);
    eager.finish(bytes);
    return;
  }
  transport.agree(signatures_, deadline);
  StageGate::instance().pass(Stage::Agreed);
  runCollectives(calls);
}

void Operation::runCollectives(Exchange& calls) {
  std::vector<Collective::Finish> finishes;
  finishes.reserve(setup_.collectives.size());
  for (const Collective& collective : setup_.collectives) {
    finishes.push_back(collective.begin(calls));
  }
  StageGate::instance().pass(Stage::Posted);
  // A send completes only after its receiver has read the size, which happens when that rank
  // finishes its receive. So ranks that send to each other must finish their receives before they
  // wait for their sends.
  for (const bool is_send : {false, true}) {
    for (size_t i = 0; i < finishes.size(); ++i) {
      if ((signatures_[i].kind == CollectiveKind::Send) == is_send) {
        finishes[i](calls);
      }
    }
  }
}

std::string Operation::explain(const std::string& cause, const std::string& gloo_text,
                               std::optional<milliseconds> elapsed) const {
  std::string text = c10::str(nameOf(setup_.kind), " failed: ", cause, "\nOperation ",
                              setup_.number, " of ", setup_.state->describe());
  if (!signatures_.empty() && !signatures_.front().sizes.empty()) {
    text += c10::str(", on a tensor of sizes ", signatures_.front().describeTensors());
  }
  if (signatures_.size() > 1) {
    text += c10::str(" and ", signatures_.size() - 1, " more");
  }
  text += elapsed.has_value() ? c10::str("; it ran for ", seconds(*elapsed), ", its timeout is ",
                                         seconds(setup_.timeout), ".")
                              : std::string(".");
  if (!gloo_text.empty()) {
    text += c10::str("\nGloo: ", gloo_text);
  }
  return text;
}

const char* kernelNameOf(CollectiveKind kind) { return kKernelNames[static_cast<size_t>(kind)]; }

void launchOperation(const c10::openreg::OpenRegStream& stream, CollectiveKind kind,
                     std::shared_ptr<Operation> operation) {
  static constexpr auto kKernels = [] {
    std::array<orKernel, kCollectiveKindCount> kernels{};
    for (size_t i = 0; i < kernels.size(); ++i) {
      kernels[i] = c10::openreg::describeKernel<OperationKernel>(kKernelNames[i]);
    }
    return kernels;
  }();
  const std::shared_ptr<Operation> enqueued = operation;
  enqueued->noteEnqueued();
  try {
    c10::openreg::launchKernel(kKernels[static_cast<size_t>(kind)], stream,
                               OperationKernel{std::move(operation)});
  } catch (...) {
    enqueued->noteRefused();
    throw;
  }
}

}  // namespace at::openreg
