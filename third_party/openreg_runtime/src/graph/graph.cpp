#include "graph/graph.h"

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/handle.h"
#include "base/process.h"

namespace openreg {
namespace {

const char* name_of(CommandKind kind) {
  switch (kind) {
    case CommandKind::Kernel:
      return "kernel";
    case CommandKind::HostFunction:
      return "host function";
    case CommandKind::Copy:
      return "copy";
    case CommandKind::Fill:
      return "fill";
    default:
      return "unknown";
  }
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

// Several lines; graphviz breaks a label where it says \n.
std::string label_of(const GraphNode& node) {
  const Command& command = *node.command;
  std::string label = name_of(command.kind);
  if (command.kind == CommandKind::Kernel) label += concat("\n", command.name());
  label += concat("\nstream ", node.stream_id, " of device ", node.device);
  if (command.peer_device >= 0) label += concat(" from device ", int{command.peer_device});
  if (command.bytes > 0) label += concat("\n", command.bytes, " bytes");
  return label;
}

constinit HandleTable<std::shared_ptr<Graph>, HandleKind::Graph> graphs;

orError_t find_graph(orGraph_t handle, const void* result, const char* function,
                     std::shared_ptr<Graph>* graph) {
  if (const orError_t error = openreg::find_graph(handle, function, graph)) return error;
  if (result == nullptr) {
    return fail(orErrorInvalidValue, concat(function, ": a pointer argument is null"));
  }
  return orSuccess;
}

}  // namespace

orGraph_t add_graph(std::shared_ptr<Graph> graph) {
  return to_handle<orGraph_t>(graphs.add(std::move(graph)));
}

orError_t find_graph(orGraph_t handle, const char* function, std::shared_ptr<Graph>* graph) {
  if (const orError_t error = check_not_forked()) return error;
  if (graphs.get(number_of(handle), graph)) return orSuccess;
  return fail_stale(number_of(handle), function, "a graph");
}

void write_dot(const Graph& graph, std::ostream& out) {
  out << "digraph capture {\n  node [shape=box]\n";
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    out << "  n" << i << " [label=" << quoted(label_of(graph.nodes[i])) << "]\n";
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const size_t dependency : graph.nodes[i].dependencies) {
      out << "  n" << dependency << " -> n" << i << "\n";
    }
  }
  out << "}\n";
}

}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orGraphGetNodeCount(orGraph_t graph, size_t* count) {
  return guarded([&] {
    std::shared_ptr<Graph> found;
    if (const orError_t error = find_graph(graph, count, "orGraphGetNodeCount", &found)) {
      return error;
    }
    *count = found->nodes.size();
    return orSuccess;
  });
}

orError_t orGraphGetEdgeCount(orGraph_t graph, size_t* count) {
  return guarded([&] {
    std::shared_ptr<Graph> found;
    if (const orError_t error = find_graph(graph, count, "orGraphGetEdgeCount", &found)) {
      return error;
    }
    *count = 0;
    for (const GraphNode& node : found->nodes) *count += node.dependencies.size();
    return orSuccess;
  });
}

orError_t orGraphDebugDotPrint(orGraph_t graph, const char* path, unsigned flags) {
  return guarded([&] {
    std::shared_ptr<Graph> found;
    if (const orError_t error = find_graph(graph, path, "orGraphDebugDotPrint", &found))
      return error;
    if (flags != 0) {
      return fail(orErrorInvalidValue,
                  concat("orGraphDebugDotPrint: expected flags 0, got ", flags));
    }
    std::ofstream file(path);
    write_dot(*found, file);
    file.close();
    if (file) return orSuccess;
    return fail(orErrorOperatingSystem,
                concat("orGraphDebugDotPrint: the file '", path, "' cannot be written"));
  });
}

orError_t orGraphDestroy(orGraph_t graph) {
  return guarded([&] {
    if (graph == nullptr || is_forked()) return orSuccess;
    std::shared_ptr<Graph> removed;
    if (graphs.remove(number_of(graph), &removed)) return orSuccess;
    return fail_stale(number_of(graph), "orGraphDestroy", "a graph");
  });
}

}  // extern "C"
