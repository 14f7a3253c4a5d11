// The state of memory as Python dictionaries, in the formats of torch.cuda.
//
// The caller holds the GIL. Functions that wait release it.
#pragma once

#include <c10/core/Allocator.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

namespace torch_openreg {

// The calling thread's stack: Python and TorchScript frames, and C++ frames.
std::shared_ptr<c10::GatheredContext> gatherPythonStack();
std::shared_ptr<c10::GatheredContext> gatherWholeStack();

// The segments and their blocks; those of one private pool unless the id is (0, 0).
pybind11::list describeSegments(c10::MempoolId_t pool);

// A device's history. The clock must be started before the first entry.
void startClockOfHistory();
pybind11::list describeHistory(int64_t device);

// The blocks and the history of pinned memory; empty with a torch that does not record it.
pybind11::list describePinnedSegments();
pybind11::list describePinnedHistory();

// The settings of the device allocator.
pybind11::dict describeSettings();

// Waits for all devices.
pybind11::list describeCorruptions();

// The statistics that torch's own binding omits.
pybind11::dict describePrivatePools(int64_t device);

// The statistics of the cache of pinned memory.
pybind11::dict describeHostStats();

}  // namespace torch_openreg
