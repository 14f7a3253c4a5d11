// Graphs: captured work of streams that can be replayed. Implements torch.accelerator.Graph.
#pragma once

#include <ATen/core/GraphImplInterface.h>
#include <openreg/graph.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/extras/graph/GeneratorCapture.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {

// Note [Life of a graph]
//   capture_begin   the current stream captures, its allocations come from a private pool
//   capture_end     creates the runtime's graph and, without keep_graph, its executable
//   replay          launches the executable on the current stream of the capture's device
//   reset           returns to the initial state; pending launches still run
// The pool is retained until reset, because the captured addresses belong to the graph.
//
// Threads: one at a time. Functions that wait release the GIL.
class OpenRegGraph final : public at::GraphImplInterface {
 public:
  explicit OpenRegGraph(const at::GraphImplArgs& args) : keeps_graph_(args.keep_graph) {}
  OpenRegGraph(const OpenRegGraph&) = delete;
  OpenRegGraph& operator=(const OpenRegGraph&) = delete;
  ~OpenRegGraph() override;

  // Errors: RuntimeError if the graph is capturing or has captured, or if the current stream is a
  // default stream.
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override;

  // Errors: AcceleratorError if the capture was invalidated or has unjoined work; the graph is then
  // as before capture_begin.
  void capture_end() override;

  void instantiate() override;
  void replay() override;
  void reset() override;
  c10::MempoolId_t pool() const override;

  // Keeps the data for debug_dump(). Call before the capture ends.
  void enable_debug_mode() override { is_debugging_ = true; }

  // Writes the graph for Graphviz.
  void debug_dump(const std::string& path) override;

 private:
  void beginPools();
  void endPools();
  void releasePools();

  const bool keeps_graph_;
  bool is_debugging_ = false;

  // Valid from capture_begin to reset.
  std::optional<c10::openreg::OpenRegStream> stream_;  // where the capture began
  c10::MempoolId_t pool_{0, 0};
  // The id of the capture, 0 before the runtime has assigned one. The pools' filters read it, and
  // may do so briefly after the graph was destroyed.
  std::shared_ptr<std::atomic<uint64_t>> capture_id_;
  bool is_capturing_ = false;

  // Valid from capture_end to reset.
  bool has_captured_ = false;
  orGraph_t graph_ = nullptr;  // null if it is not needed any more
  orGraphExec_t exec_ = nullptr;
  std::vector<CapturedGenerator> generators_;  // of its kernels
};

}  // namespace at::openreg
