#include "csrc/extras/graph/Graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <tuple>
#include <utility>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/DeviceName.h"
#include "csrc/memory/Allocator.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {
namespace {

using c10::openreg::BlockingRegion;
using c10::openreg::kDeviceType;
using c10::openreg::observe;
using c10::openreg::Observer;
using c10::openreg::OpenRegStream;

orStreamCaptureMode modeOf(at::GraphCaptureMode mode) {
  switch (mode) {
    case at::GraphCaptureMode::Default:
    case at::GraphCaptureMode::Global:
      return orStreamCaptureModeGlobal;
    case at::GraphCaptureMode::ThreadLocal:
      return orStreamCaptureModeThreadLocal;
    case at::GraphCaptureMode::Relaxed:
      return orStreamCaptureModeRelaxed;
  }
  TORCH_CHECK_VALUE(false, "Graph.capture_begin: expected a GraphCaptureMode, got ",
                    static_cast<int>(mode));
}

// torch has the names in capitals.
void registerGraphs(const std::string& type_name) {
  std::string name = type_name;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return std::toupper(letter); });
  const at::RegistererGraphImplRegistry registered(
      name, at::GraphImplRegistry(), at::RegistererGraphImplRegistry::DefaultCreator<OpenRegGraph>);
}

[[maybe_unused]] const bool are_registered = [] {
  c10::openreg::servesCuda() ? registerGraphs("cuda")
                             : c10::openreg::registerByTypeName(&registerGraphs);
  return true;
}();

}  // namespace

OpenRegGraph::~OpenRegGraph() {
  if (c10::openreg::isInBadFork()) {
    return;
  }
  try {
    reset();
  } catch (const std::exception& error) {
    TORCH_WARN("A graph could not be destroyed: ", error.what());
  }
}

// docs: graph-begin
void OpenRegGraph::capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) {
  TORCH_CHECK(!is_capturing_ && !has_captured_,
              "Graph.capture_begin: expected a graph without a capture, got one that ",
              is_capturing_ ? "is capturing" : "has captured; call reset() first");
  TORCH_CHECK(pool.first == 0 || pool.second == 0,
              "Graph.capture_begin: expected the id of a pool, got (", pool.first, ", ",
              pool.second, ")");
  const orStreamCaptureMode runtime_mode = modeOf(mode);
  const OpenRegStream stream = c10::openreg::getCurrentOpenRegStream();
  TORCH_CHECK(
      stream.id() != 0,
      c10::openreg::servesCuda() ? "CUDA graphs must be captured on a non-default stream. " : "",
      "Graph.capture_begin: expected a current stream that is not the ", "default stream of ",
      stream.device(), ", which code outside of the capture also uses; select another stream");
  stream_ = stream;
  pool_ = pool == c10::MempoolId_t{0, 0} ? c10::openreg::createPoolId(/*by_user=*/false) : pool;
  capture_id_ = std::make_shared<std::atomic<uint64_t>>(0);
  beginPools();
  const orError_t error = orStreamBeginCapture(stream.stream(), runtime_mode);
  if (error != orSuccess) {
    endPools();
    releasePools();
    OPENREG_CHECK_RESULT(error, "Graph.capture_begin");
  }
  is_capturing_ = true;
  capture_id_->store(stream.captureId());
  observe(&Observer::captureBegin, capture_id_->load(), stream);
}
// docs: end

// docs: graph-end
void OpenRegGraph::capture_end() {
  TORCH_CHECK(is_capturing_, "Graph.capture_end: expected a graph that is capturing");
  const OpenRegStream current = c10::openreg::getCurrentOpenRegStream(stream_->device_index());
  TORCH_CHECK(current == *stream_, "Graph.capture_end: expected the current stream to be ",
              stream_->unwrap(), ", where the capture began, got ", current.unwrap());
  const orError_t error = orStreamEndCapture(stream_->stream(), &graph_);
  if (error == orErrorStreamCaptureWrongThread) {
    OPENREG_CHECK_RESULT(error, "Graph.capture_end");
  }
  is_capturing_ = false;
  const auto ended = c10::make_scope_exit([&] {
    observe(&Observer::captureEnd, capture_id_->load(), /*is_valid=*/error == orSuccess);
  });
  endPools();
  generators_ = takeGeneratorsOfCapture(capture_id_->load());
  if (error != orSuccess) {
    generators_.clear();
    releasePools();
    OPENREG_CHECK_RESULT(error, "Graph.capture_end");
  }
  has_captured_ = true;
  size_t node_count = 0;
  OPENREG_CHECK(orGraphGetNodeCount(graph_, &node_count));
  if (node_count == 0) {
    TORCH_WARN(c10::openreg::servesCuda() ? "The CUDA Graph is empty. " : "",
               "Graph.capture_end: nothing was captured; expected work on ", stream_->unwrap(),
               " or on streams that it forked to");
  }
  if (keeps_graph_) {
    return;
  }
  instantiate();
  if (!is_debugging_) {
    OPENREG_CHECK(orGraphDestroy(std::exchange(graph_, nullptr)));
  }
}
// docs: end

void OpenRegGraph::instantiate() {
  TORCH_CHECK(has_captured_, "Graph.instantiate: expected a graph that has captured");
  TORCH_CHECK(graph_ != nullptr,
              "Graph.instantiate: expected a graph made with keep_graph=True; instantiate() is "
              "intended to be called by the user only when keep_graph=true, as other graphs are "
              "instantiated when their capture ends");
  OPENREG_CHECK(orGraphExecDestroy(std::exchange(exec_, nullptr)));
  OPENREG_CHECK(orGraphInstantiate(&exec_, graph_, 0));
}

// docs: graph-replay
void OpenRegGraph::replay() {
  TORCH_CHECK(has_captured_, "Graph.replay: expected a graph that has captured");
  if (exec_ == nullptr) {
    instantiate();
  }
  const c10::DeviceGuard guard(stream_->device());
  const OpenRegStream stream = c10::openreg::getCurrentOpenRegStream(stream_->device_index());
  const BlockingRegion region;  // the queue may be full
  std::vector<at::Generator> engines;
  for (const auto& generator : generators_) {
    engines.push_back(generator.beginReplay(stream));
  }
  observe(&Observer::graphReplay, capture_id_->load(), stream);
  OPENREG_CHECK(orGraphLaunch(exec_, stream.stream()));
  for (size_t i = 0; i < engines.size(); ++i) {
    generators_[i].endReplay(stream, engines[i]);
  }
}
// docs: end

void OpenRegGraph::reset() {
  if (is_capturing_) {
    // The partial capture is discarded.
    const orError_t error = orStreamEndCapture(stream_->stream(), &graph_);
    if (error == orErrorStreamCaptureWrongThread) {
      OPENREG_CHECK_RESULT(error, "Graph.reset");
    }
    std::ignore = orGetLastError();
    is_capturing_ = false;
    endPools();
    generators_ = takeGeneratorsOfCapture(capture_id_->load());
    has_captured_ = true;
  }
  if (!has_captured_) {
    return;
  }
  has_captured_ = false;
  generators_.clear();
  observe(&Observer::graphDeletion, capture_id_->load());
  const orError_t exec_error = orGraphExecDestroy(std::exchange(exec_, nullptr));
  const orError_t graph_error = orGraphDestroy(std::exchange(graph_, nullptr));
  releasePools();
  OPENREG_CHECK_RESULT(exec_error, "orGraphExecDestroy");
  OPENREG_CHECK_RESULT(graph_error, "orGraphDestroy");
}

c10::MempoolId_t OpenRegGraph::pool() const {
  TORCH_CHECK(has_captured_, "Graph.pool: expected a graph that has captured");
  return pool_;
}

void OpenRegGraph::debug_dump(const std::string& path) {
  TORCH_CHECK(has_captured_, "Graph.debug_dump: expected a graph that has captured");
  TORCH_CHECK(graph_ != nullptr,
              "Graph.debug_dump: expected a graph made with keep_graph=True, or "
              "enable_debug_mode() before the capture ended");
  OPENREG_CHECK(orGraphDebugDotPrint(graph_, path.c_str(), 0));
}

// Streams of other devices may join the capture, so the pool is used on all devices.
void OpenRegGraph::beginPools() {
  const auto is_captured = [id = capture_id_](const OpenRegStream& stream) {
    const uint64_t own = id->load();
    return own != 0 && stream.captureId() == own;
  };
  // If one of the allocators fails, the redirection of the others is undone.
  c10::DeviceIndex begun = 0;
  try {
    for (; begun < c10::openreg::device_count(); ++begun) {
      c10::openreg::beginAllocateToPool(begun, pool_, is_captured);
    }
    at::getHostAllocator(kDeviceType)
        ->begin_allocate_to_pool(pool_, [is_captured](c10::Stream stream) {
          return is_captured(OpenRegStream(stream));
        });
  } catch (const c10::Error&) {
    while (begun-- > 0) {
      c10::openreg::endAllocateToPool(begun, pool_);
      c10::openreg::releasePool(begun, pool_);
    }
    throw;
  }
}

void OpenRegGraph::endPools() {
  for (c10::DeviceIndex device = 0; device < c10::openreg::device_count(); ++device) {
    c10::openreg::endAllocateToPool(device, pool_);
  }
  at::getHostAllocator(kDeviceType)->end_allocate_to_pool(pool_);
}

void OpenRegGraph::releasePools() {
  for (c10::DeviceIndex device = 0; device < c10::openreg::device_count(); ++device) {
    c10::openreg::releasePool(device, pool_);
  }
  at::getHostAllocator(kDeviceType)->release_pool(pool_);
}

}  // namespace at::openreg
