// Executable graphs: a graph cut into pieces that queues take whole. See openreg/graph.h.
//
// Note [Segments]
// What was captured on one stream is a lane: it runs on one stream, in the order of the capture.
// Lane 0 runs on the stream of the launch, each other lane on a stream of the executable graph's
// own. A lane is cut into segments where it waits for another lane or another lane waits for it; a
// segment is one command of the queue, and its nodes run in a loop. So the launch of a chain is
// one submission, and branches run side by side.
//
//   launch stream   [wait for the latest launch]  record  segment ... wait  segment ...
//   other lane                                    wait    segment ... record ...  recover
//
// Failures of other lanes reach the launch stream through the records it waits for. A lane then
// recovers, so that the next launch runs and the failure is reported once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace openreg {

class Stream;

struct GraphSegment {
  size_t lane;
  int device;
  std::vector<Command*> commands;
  std::vector<size_t> waits;  // segments of other lanes that come first; smaller indexes
  bool has_follower = false;  // a segment of another lane, or the end, waits for it
};

// Shared by the handle and the launches that are not done.
class GraphProgram : public std::enable_shared_from_this<GraphProgram> {
 public:
  // Prepares the graph. Makes the streams of its lanes.
  static std::shared_ptr<GraphProgram> make(std::shared_ptr<Graph> graph);

  explicit GraphProgram(std::shared_ptr<Graph> graph) : graph_(std::move(graph)) {}
  GraphProgram(const GraphProgram&) = delete;
  GraphProgram& operator=(const GraphProgram&) = delete;
  ~GraphProgram();

  // Enqueues all segments. Stores the number of the last command on the stream, 0 if there is
  // none.
  orError_t launch(Stream& stream, uint64_t* sequence);

 private:
  class Launch;

  void cut_segments();

  const std::shared_ptr<Graph> graph_;
  std::vector<GraphSegment> segments_;  // in the order of their first nodes
  std::vector<size_t> last_waits_;      // segments that the launch stream waits for at the end
  std::vector<Stream*> streams_;        // of the lanes; null for lane 0 and lanes without nodes
};

}  // namespace openreg
