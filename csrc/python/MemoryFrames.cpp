#include "csrc/python/MemoryFrames.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <utility>

// torch exports these two functions, but the header that declares them needs a JSON library that
// torch does not install.
namespace torch {
std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
void freeDeadCapturedTracebackFrames();
}  // namespace torch

namespace torch_openreg {

namespace py = pybind11;

void MemoryFrames::put(py::dict where, const std::shared_ptr<c10::GatheredContext>& context) {
  if (auto* traceback = dynamic_cast<torch::CapturedTraceback*>(context.get())) {
    tracebacks_.push_back(traceback);
    places_.push_back(std::move(where));
  } else {
    where["frames"] = py::list();
  }
}

void MemoryFrames::symbolize() {
  const std::vector<py::object> lists = torch::py_symbolize(tracebacks_);
  for (size_t i = 0; i < lists.size(); ++i) {
    places_[i]["frames"] = lists[i];
  }
  torch::freeDeadCapturedTracebackFrames();
}

}  // namespace torch_openreg
