#include "graph/graph_exec.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/handle.h"
#include "base/mutex.h"
#include "base/process.h"
#include "base/setting.h"
#include "base/trace.h"
#include "queue/capture_target.h"
#include "queue/completion.h"
#include "queue/device.h"
#include "queue/event.h"
#include "queue/stream.h"
#include "queue/worker.h"

namespace openreg {
namespace {

constinit HandleTable<std::shared_ptr<GraphProgram>, HandleKind::GraphExec> programs;

constexpr size_t nothing = static_cast<size_t>(-1);

// The closure of CommandKind::Segment.
struct SegmentLaunch {
  CommandSegment segment;
  std::shared_ptr<GraphProgram> program;
};

void move_segment_launch(void* to, void* from) {
  auto* source = static_cast<SegmentLaunch*>(from);
  new (to) SegmentLaunch(std::move(*source));
  source->~SegmentLaunch();
}

void destroy_segment_launch(void* closure) {
  static_cast<SegmentLaunch*>(closure)->~SegmentLaunch();
}

// Workers know what to do with them; see worker.cpp.
constexpr orKernel segment_kernel{"orGraphLaunch", nullptr, move_segment_launch,
                                  destroy_segment_launch};
constexpr orKernel recover_kernel{"orGraphLaunch", nullptr, nullptr, nullptr};

}  // namespace

std::shared_ptr<GraphProgram> GraphProgram::make(std::shared_ptr<Graph> graph) {
  auto program = std::make_shared<GraphProgram>(std::move(graph));
  program->cut_segments();
  program->streams_.resize(program->graph_->lane_count);
  for (const GraphSegment& segment : program->segments_) {
    Stream*& stream = program->streams_[segment.lane];
    if (segment.lane == 0 || stream != nullptr) continue;
    stream =
        Device::active(segment.device)->create_stream(orStreamNonBlocking, least_stream_priority);
  }
  return program;
}

GraphProgram::~GraphProgram() {
  for (Stream* stream : streams_) {
    if (stream != nullptr) stream->destroy();
  }
}

// See Note [Segments].
void GraphProgram::cut_segments() {
  const std::vector<GraphNode>& nodes = graph_->nodes;
  std::vector<bool> is_awaited(nodes.size());  // by another lane, or by the end
  for (const GraphNode& node : nodes) {
    for (const size_t dependency : node.dependencies) {
      if (nodes[dependency].lane != node.lane) is_awaited[dependency] = true;
    }
  }
  for (const size_t node : graph_->end) {
    if (nodes[node].lane != 0) is_awaited[node] = true;
  }

  std::vector<size_t> segment_of(nodes.size());
  std::vector<size_t> open(graph_->lane_count, nothing);
  // Per lane and other lane, the latest segment waited for: those before it come with it.
  std::vector<std::vector<size_t>> latest_wait(graph_->lane_count,
                                               std::vector<size_t>(graph_->lane_count, nothing));
  const auto waits_of = [&](size_t lane, const std::vector<size_t>& dependencies) {
    std::vector<size_t> waits;
    for (const size_t dependency : dependencies) {
      if (nodes[dependency].lane == lane) continue;
      size_t& latest = latest_wait[lane][nodes[dependency].lane];
      const size_t segment = segment_of[dependency];
      if (latest != nothing && latest >= segment) continue;
      latest = segment;
      waits.push_back(segment);
      segments_[segment].has_follower = true;
    }
    return waits;
  };

  for (size_t i = 0; i < nodes.size(); ++i) {
    const GraphNode& node = nodes[i];
    std::vector<size_t> waits = waits_of(node.lane, node.dependencies);
    if (open[node.lane] == nothing || !waits.empty()) {
      open[node.lane] = segments_.size();
      segments_.push_back(
          {.lane = node.lane, .device = node.device, .commands = {}, .waits = std::move(waits)});
    }
    segment_of[i] = open[node.lane];
    segments_[segment_of[i]].commands.push_back(&*node.command);
    if (is_awaited[i]) open[node.lane] = nothing;
  }
  last_waits_ = waits_of(0, graph_->end);
}

// One launch: the submissions to the streams of all lanes.
class GraphProgram::Launch {
 public:
  // Follows the graph's latest launch.
  Launch(GraphProgram& program, Stream& stream, CompletionRef latest, const trace::Span& call)
      : program_(program),
        stream_(stream),
        latest_(std::move(latest)),
        call_(call),
        done_(program.segments_.size()) {}

  orError_t run() {
    if (const orError_t error = begin()) return error;
    for (size_t i = 0; i < done_.size() && !is_dropped_; ++i) {
      if (const orError_t error = submit_segment(i)) return error;
    }
    if (const orError_t error = wait_for_all(program_.last_waits_, stream_)) return error;
    return recover();
  }

  // The number of the last command on the launch stream, 0 if there is none.
  uint64_t last_sequence() const { return last_sequence_; }

 private:
  Stream& stream_of(size_t lane) const { return lane == 0 ? stream_ : *program_.streams_[lane]; }

  // Makes all lanes follow the launch stream, and that the latest launch on another stream.
  orError_t begin() {
    if (latest_ && latest_->stream() != &stream_) {
      if (const orError_t error = wait(stream_, latest_)) return error;
    }
    CompletionRef start;
    for (Stream* stream : program_.streams_) {
      if (stream == nullptr || is_dropped_) continue;
      if (!start) {
        if (const orError_t error = record(stream_, &start)) return error;
      }
      if (start) {
        if (const orError_t error = wait(*stream, start)) return error;
      }
    }
    return orSuccess;
  }

  orError_t submit_segment(size_t index) {
    const GraphSegment& segment = program_.segments_[index];
    Stream& stream = stream_of(segment.lane);
    if (const orError_t error = wait_for_all(segment.waits, stream)) return error;
    alignas(SegmentLaunch) std::byte closure[sizeof(SegmentLaunch)];
    auto* launch = new (closure)
        SegmentLaunch{{&segment.commands, segment.device}, program_.shared_from_this()};
    try {
      if (const orError_t error =
              submit(stream, CommandKind::Segment, segment_kernel, launch, sizeof(closure))) {
        launch->~SegmentLaunch();
        return error;
      }
    } catch (...) {
      launch->~SegmentLaunch();
      throw;
    }
    return segment.has_follower ? record(stream, &done_[index]) : orSuccess;
  }

  orError_t wait_for_all(const std::vector<size_t>& segments, Stream& stream) {
    for (const size_t segment : segments) {
      if (!done_[segment]) continue;  // dropped
      if (const orError_t error = wait(stream, done_[segment])) return error;
    }
    return orSuccess;
  }

  orError_t recover() {
    for (Stream* stream : program_.streams_) {
      if (stream == nullptr || is_dropped_) continue;
      if (const orError_t error =
              submit(*stream, CommandKind::Recover, recover_kernel, nullptr, 0)) {
        return error;
      }
    }
    return orSuccess;
  }

  orError_t submit(Stream& stream, CommandKind kind, const orKernel& kernel, void* closure,
                   size_t closure_size) {
    uint64_t sequence = 0;
    const orError_t error = stream.submit({.kind = kind,
                                           .function = kernel.name,
                                           .kernel = &kernel,
                                           .closure = closure,
                                           .closure_size = closure_size,
                                           .call = &call_},
                                          &sequence);
    if (error == orSuccess) note(stream, sequence);
    return error;
  }

  // Makes a completion of what the stream has got so far; none if the record is dropped.
  orError_t record(Stream& stream, CompletionRef* completion) {
    CompletionRef made = CompletionRef::make();
    uint64_t sequence = 0;
    if (const orError_t error = submit_record(stream, made, &sequence, &call_)) return error;
    note(stream, sequence);
    if (sequence > 0) *completion = std::move(made);
    return orSuccess;
  }

  // Also on a stream that has failed: if its failure is cleared meanwhile, segments run.
  orError_t wait(Stream& stream, const CompletionRef& completion) {
    uint64_t sequence = 0;
    if (const orError_t error =
            submit_wait(stream, completion, &sequence, CommandKind::Follow, &call_)) {
      return error;
    }
    if (sequence > 0) note(stream, sequence);
    return orSuccess;
  }

  void note(const Stream& stream, uint64_t sequence) {
    if (sequence == 0) is_dropped_ = true;
    if (&stream == &stream_) last_sequence_ = sequence;
  }

  GraphProgram& program_;
  Stream& stream_;
  const CompletionRef latest_;
  const trace::Span& call_;
  std::vector<CompletionRef> done_;  // per segment that has a follower
  uint64_t last_sequence_ = 0;
  bool is_dropped_ = false;  // the process exits
};

orError_t GraphProgram::launch(Stream& stream, uint64_t* sequence) {
  const trace::Span call(orActivityRuntime, "orGraphLaunch", stream.device().index(), stream.id());
  const Lock lock(graph_->launch_mutex);
  Launch launch(*this, stream, graph_->latest_launch, call);
  CompletionRef completion = CompletionRef::make();  // first: what a launch began is always known
  orError_t error = orSuccess;
  try {
    error = launch.run();
  } catch (const std::bad_alloc&) {
    error = fail_out_of_memory();
  }
  *sequence = launch.last_sequence();
  if (*sequence > 0) {
    completion->bind(stream, *sequence);
    graph_->latest_launch = std::move(completion);
  }
  return error;
}

}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orGraphInstantiate(orGraphExec_t* exec, orGraph_t graph, unsigned long long flags) {
  return guarded([&] {
    std::shared_ptr<Graph> found;
    if (const orError_t error = find_graph(graph, "orGraphInstantiate", &found)) return error;
    if (exec == nullptr || flags != 0) {
      return fail(orErrorInvalidValue,
                  exec == nullptr ? std::string("orGraphInstantiate: exec is null")
                                  : concat("orGraphInstantiate: expected flags 0, got ", flags));
    }
    *exec = to_handle<orGraphExec_t>(programs.add(GraphProgram::make(std::move(found))));
    return orSuccess;
  });
}

orError_t orGraphLaunch(orGraphExec_t exec, orStream_t handle) {
  return guarded([&] {
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    std::shared_ptr<GraphProgram> program;
    if (!programs.get(number_of(exec), &program)) {
      return fail_stale(number_of(exec), "orGraphLaunch", "an executable graph");
    }
    if (Worker::current_stream() != nullptr) {
      return fail(orErrorNotPermitted, "orGraphLaunch: work on a stream cannot launch a graph");
    }
    if (const orError_t error = check_not_capturing(*stream, "orGraphLaunch")) return error;
    uint64_t sequence = 0;
    if (const orError_t error = program->launch(*stream, &sequence)) return error;
    return settings().is_launch_blocking && sequence > 0 ? stream->finish(sequence) : orSuccess;
  });
}

orError_t orGraphExecDestroy(orGraphExec_t exec) {
  return guarded([&] {
    if (exec == nullptr || is_forked()) return orSuccess;
    std::shared_ptr<GraphProgram> removed;
    if (programs.remove(number_of(exec), &removed)) return orSuccess;
    return fail_stale(number_of(exec), "orGraphExecDestroy", "an executable graph");
  });
}

}  // extern "C"
