// Step 10 of docs/bring_up.md, graphs. In full: csrc/extras/graph/Graph.cpp.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/GraphImplInterface.h>

#include "PrivatePools.h"
#include "Random.h"

namespace chip {

// docs: chip-graph
// What torch.accelerator.Graph calls.
class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs& args) : keeps_graph_(args.keep_graph) {}
  ~Graph() override { reset(); }

  // A pool with the id of another graph is shared with it. The capture has streams of its own
  // device and of others, as soon as they wait for its stream, and memory of all of them.
  void capture_begin(c10::MempoolId_t id, at::GraphCaptureMode mode) override {
    TORCH_CHECK(pool_ == nullptr, "capture_begin: expected a new graph; call reset() first");
    stream_ = currentStream(current_device());
    // Default becomes the driver's Relaxed, in which the host allocator may take memory, too.
    const auto restriction = static_cast<orStreamCaptureMode>((static_cast<int>(mode) + 2) % 3);
    check(orStreamBeginCapture(handleOf(*stream_), restriction));
    capture_ = captureOf(*stream_);
    id_ = id == c10::MempoolId_t{0, 0} ? c10::MempoolId_t{capture_, 0} : id;
    pool_ = PoolAllocator::get().begin(capture_, id_);
    host_->begin_allocate_to_pool(id_, [own = capture_](Stream s) { return captureOf(s) == own; });
  }

  void capture_end() override {
    TORCH_CHECK(capture_ != 0, "capture_end: expected a graph that captures");
    const orError_t error = endCapture();
    if (error != orSuccess) reset();
    check(error);
    if (!keeps_graph_) instantiate();
  }

  void instantiate() override {
    TORCH_CHECK(graph_ != nullptr, "instantiate: expected a graph that has captured");
    check(orGraphExecDestroy(std::exchange(exec_, nullptr)));
    check(orGraphInstantiate(&exec_, graph_, 0));
  }

  void replay() override {
    if (exec_ == nullptr) instantiate();
    const Stream stream = currentStream(stream_->device_index());
    for (const CapturedKey& key : keys_) key.draw(stream);
    wait([&] { return orGraphLaunch(exec_, handleOf(stream)); });  // for a place in the queue
  }

  // Waits for the replays, whose memory others get then.
  void reset() noexcept override try {
    if (capture_ != 0) std::ignore = endCapture();
    if (pool_ == nullptr) return;
    std::ignore = orGraphExecDestroy(std::exchange(exec_, nullptr));
    std::ignore = orGraphDestroy(std::exchange(graph_, nullptr));
    keys_.clear();
    host_->release_pool(id_);
    wait([&] { return orDeviceSynchronizeIndex(stream_->device_index()); });
    pool_.reset();
  } catch (const std::exception& error) {
    TORCH_WARN("a graph could not be reset: ", error.what());
  }

  c10::MempoolId_t pool() const override { return id_; }
  void enable_debug_mode() override {}  // graphs are kept
  void debug_dump(const std::string& path) override {
    check(orGraphDebugDotPrint(graph_, path.c_str(), 0));
  }

 private:
  orError_t endCapture() {
    const orError_t error = orStreamEndCapture(handleOf(*stream_), &graph_);
    PoolAllocator::get().end(capture_);
    host_->end_allocate_to_pool(id_);
    keys_ = CapturedKeys::get().take(std::exchange(capture_, 0));
    return error;
  }

  const bool keeps_graph_;
  at::HostAllocator* host_ = at::getHostAllocator(kType);
  std::optional<Stream> stream_;
  unsigned long long capture_ = 0;  // while it captures
  c10::MempoolId_t id_{0, 0};
  std::shared_ptr<PrivatePool> pool_;
  std::vector<CapturedKey> keys_;
  orGraph_t graph_ = nullptr;
  orGraphExec_t exec_ = nullptr;
};

// torch finds it by the name of the device in capitals. With a name that is typed in, the macro
// REGISTER_GRAPH_IMPL(MYCHIP, chip::Graph) does the same, written in the namespace at.
static std::string capitals(std::string name) {
  for (char& letter : name) letter = static_cast<char>(std::toupper(letter));
  return name;
}
static const at::RegistererGraphImplRegistry registration(
    capitals(kName), at::GraphImplRegistry(),
    at::RegistererGraphImplRegistry::DefaultCreator<Graph>);
// docs: end

}  // namespace chip
