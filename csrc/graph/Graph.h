// Graphs: captures of a stream's work, to be replayed. What torch.accelerator.Graph is on openreg.
#pragma once

#include <ATen/core/GraphImplInterface.h>
#include <openreg/graph.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "torch_openreg/core/Stream.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {

// Note [Life of a graph]
//   capture_begin   the current stream captures, its allocations come from a private pool
//   capture_end     gives the runtime's graph, and without keep_graph what can be launched
//   replay          launches that on the current stream of the capture's device
//   reset           back to the beginning; launches under way still run
// The pool is retained until reset: the captured addresses stay the graph's.
//
// Threads: one at a time. What waits releases the GIL.
class OpenRegGraph final : public at::GraphImplInterface {
 public:
  explicit OpenRegGraph(const at::GraphImplArgs& args) : keeps_graph_(args.keep_graph) {}
  OpenRegGraph(const OpenRegGraph&) = delete;
  OpenRegGraph& operator=(const OpenRegGraph&) = delete;
  ~OpenRegGraph() override;

  // Errors: RuntimeError if the graph is capturing or has captured, or the current stream is a
  // default stream.
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override;

  // Errors: AcceleratorError if the capture was invalidated or has work that was not joined; the
  // graph is then as before capture_begin.
  void capture_end() override;

  void instantiate() override;
  void replay() override;
  void reset() override;
  c10::MempoolId_t pool() const override;

  // Keeps what debug_dump() needs. Call it before the capture ends.
  void enable_debug_mode() override { is_debugging_ = true; }

  // Writes the graph for graphviz.
  void debug_dump(const std::string& path) override;

 private:
  void beginPools();
  void endPools();
  void releasePools();

  const bool keeps_graph_;
  bool is_debugging_ = false;

  // From capture_begin to reset.
  std::optional<c10::openreg::OpenRegStream> stream_;  // where the capture began
  c10::MempoolId_t pool_{0, 0};
  // Of the capture, 0 before the runtime has given it one. The pools' filters look here, and may
  // do so for a moment longer than the graph lives.
  std::shared_ptr<std::atomic<uint64_t>> capture_id_;
  bool is_capturing_ = false;

  // From capture_end to reset.
  bool has_captured_ = false;
  orGraph_t graph_ = nullptr;  // null if nobody will ask for it
  orGraphExec_t exec_ = nullptr;
  std::vector<std::shared_ptr<GeneratorState>> generators_;  // that its kernels draw from
};

}  // namespace at::openreg
