// Generators of graphs: see Note [Generators on workers] in torch_openreg/random/Generator.h.
//
// The kernels of a graph draw from engines of the graph, one for each state. A replay copies the
// state to it before, and back afterwards.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "torch_openreg/core/Stream.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {

// A state that kernels of a graph draw from.
class CapturedGenerator {
 public:
  explicit CapturedGenerator(std::shared_ptr<GeneratorState> state);

  const std::shared_ptr<GeneratorState>& state() const { return state_; }
  const Generator& engine() const { return engine_; }

  // Enqueue, on the stream of a replay, a kernel that copies the state to the graph's engine, and
  // one that copies it back. `engine` is the result of the first.
  Generator beginReplay(const c10::openreg::OpenRegStream& stream) const;
  void endReplay(const c10::openreg::OpenRegStream& stream, const Generator& engine) const;

 private:
  std::shared_ptr<GeneratorState> state_;
  Generator engine_;
};

// Takes the generators that the kernels of a capture draw from. Called when the capture has ended.
std::vector<CapturedGenerator> takeGeneratorsOfCapture(uint64_t capture_id);

}  // namespace at::openreg
