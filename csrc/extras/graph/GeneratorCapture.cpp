#include "csrc/extras/graph/GeneratorCapture.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "csrc/core/Mutex.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {
namespace {

using c10::openreg::Lock;
using c10::openreg::OpenRegStream;

at::CPUGeneratorImpl* implOf(const Generator& engine) {
  return static_cast<at::CPUGeneratorImpl*>(engine.unsafeGetGeneratorImpl());
}

// Copies the state of one engine to another. The mutexes are torch's, so clang cannot check them.
void copyState(Generator target, Generator source) {
  const std::scoped_lock locks(target.mutex(), source.mutex());
  at::CPUGeneratorImpl* to = implOf(target);
  at::CPUGeneratorImpl* from = implOf(source);
  to->set_engine(from->engine());
  to->set_next_float_normal_sample(from->next_float_normal_sample());
  to->set_next_double_normal_sample(from->next_double_normal_sample());
}

struct CapturedUse {
  CapturedGenerator generator;
  OpenRegStream last_stream;
};

// The current captures that have kernels that draw.
struct CapturedUses {
  c10::openreg::Mutex mutex;
  std::unordered_map<uint64_t, std::vector<CapturedUse>> of_captures OPENREG_GUARDED_BY(mutex);
};

CapturedUses& capturedUses() {
  static auto* uses = new CapturedUses();
  return *uses;
}

// See CapturedEngine.
Generator capturedEngine(const std::shared_ptr<GeneratorState>& state, const OpenRegStream& stream,
                         uint64_t capture_id) {
  CapturedUses& uses = capturedUses();
  const Lock lock(uses.mutex);
  std::vector<CapturedUse>& of_capture = uses.of_captures[capture_id];
  const auto use = std::find_if(of_capture.begin(), of_capture.end(), [&](const CapturedUse& one) {
    return one.generator.state() == state;
  });
  if (use == of_capture.end()) {
    return of_capture.emplace_back(CapturedUse{CapturedGenerator(state), stream})
        .generator.engine();
  }
  c10::openreg::waitForStream(stream, use->last_stream);
  use->last_stream = stream;
  return use->generator.engine();
}

[[maybe_unused]] const bool is_installed = [] {
  setCapturedEngine(&capturedEngine);
  return true;
}();

}  // namespace

CapturedGenerator::CapturedGenerator(std::shared_ptr<GeneratorState> state)
    : state_(std::move(state)), engine_(at::detail::createCPUGenerator()) {}

// docs: generator-replay
Generator CapturedGenerator::beginReplay(const OpenRegStream& stream) const {
  Generator engine = state_->engineForLaunch(stream);
  c10::openreg::launchKernel<"random state to graph">(
      stream, [graph = engine_, engine] { copyState(graph, engine); });
  return engine;
}

void CapturedGenerator::endReplay(const OpenRegStream& stream, const Generator& engine) const {
  c10::openreg::launchKernel<"random state from graph">(
      stream, [graph = engine_, engine = engine] { copyState(engine, graph); });
}
// docs: end

std::vector<CapturedGenerator> takeGeneratorsOfCapture(uint64_t capture_id) {
  std::vector<CapturedGenerator> generators;
  CapturedUses& uses = capturedUses();
  const Lock lock(uses.mutex);
  if (auto node = uses.of_captures.extract(capture_id); !node.empty()) {
    for (CapturedUse& use : node.mapped()) {
      generators.push_back(std::move(use.generator));
    }
  }
  return generators;
}

}  // namespace at::openreg
