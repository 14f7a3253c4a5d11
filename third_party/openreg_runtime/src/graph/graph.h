// Graphs: captured commands and what they follow. See openreg/graph.h.
//
// capture.h makes one, graph_exec.h runs it.
#pragma once

#include <openreg/graph.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "queue/command.h"
#include "queue/completion.h"

namespace openreg {

struct GraphNode {
  CapturedCommand command;
  size_t lane;         // which of the captured streams; 0 is where the capture began
  uint64_t stream_id;  // its number
  int device;
  std::vector<size_t> dependencies;  // nodes that it directly follows; their indexes are smaller
};

// Complete when its capture has ended; from then on only `latest_launch` changes.
struct Graph {
  std::vector<GraphNode> nodes;
  size_t lane_count = 0;
  std::vector<size_t> end;  // the nodes that the end of the capture followed

  // Makes a launch one piece of each stream's work, and the launches of the graph follow each
  // other. Held while a launch waits for room in a queue: only threads that no stream waits for
  // launch.
  Mutex launch_mutex;
  CompletionRef latest_launch OPENREG_GUARDED_BY(launch_mutex);
};

// Stores a graph and returns its handle.
orGraph_t add_graph(std::shared_ptr<Graph> graph);

// Finds the graph of a handle. Fails in a forked child and if there is none.
orError_t find_graph(orGraph_t handle, const char* function, std::shared_ptr<Graph>* graph);

// Writes it in graphviz' language.
void write_dot(const Graph& graph, std::ostream& out);

}  // namespace openreg
