// The stacks of allocations as lists of dictionaries, in the format of torch's memory viewer.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

namespace torch {

struct CapturedTraceback;

}  // namespace torch

namespace torch_openreg {

// Converts the stacks of many dictionaries in one pass, because looking up single frames is slow.
// GIL: held.
class [[gnu::visibility("hidden")]] MemoryFrames {
 public:
  // Lets symbolize() add the entry "frames" to a dictionary: the stack, or an empty list if none
  // was recorded. The context must live until then.
  void put(pybind11::dict where, const std::shared_ptr<c10::GatheredContext>& context);

  // Call once.
  void symbolize();

 private:
  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::vector<pybind11::dict> places_;
};

// A list with a dictionary for each item, which `describe(item, dictionary, frames)` fills.
template <typename Items, typename Describe>
pybind11::list describeAll(const Items& items, const Describe& describe) {
  pybind11::list result;
  MemoryFrames frames;
  for (const auto& item : items) {
    pybind11::dict entry;
    describe(item, entry, frames);
    result.append(entry);
  }
  frames.symbolize();
  return result;
}

}  // namespace torch_openreg
