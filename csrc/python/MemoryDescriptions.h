// What the backend says about memory, as Python dictionaries in the formats of torch.cuda.
//
// The caller holds the GIL. What waits releases it.
#pragma once

#include <c10/core/Allocator.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

namespace torch_openreg {

// The calling thread's stack: of Python and TorchScript, and with C++.
std::shared_ptr<c10::GatheredContext> gatherPythonStack();
std::shared_ptr<c10::GatheredContext> gatherWholeStack();

// The segments and their blocks, of one private pool unless the id is (0, 0).
pybind11::list describeSegments(c10::MempoolId_t pool);

// A device's history. Its clock must have been started before the first entry was made.
void startClockOfHistory();
pybind11::list describeHistory(int64_t device);

// The blocks and the history of pinned memory; none with a torch that does not record it.
pybind11::list describePinnedSegments();
pybind11::list describePinnedHistory();

// The settings of the device allocator.
pybind11::dict describeSettings();

// Waits for all devices.
pybind11::list describeCorruptions();

// What core's own binding of a device's statistics leaves out.
pybind11::dict describePrivatePools(int64_t device);

// The statistics of the cache of pinned memory.
pybind11::dict describeHostStats();

}  // namespace torch_openreg
