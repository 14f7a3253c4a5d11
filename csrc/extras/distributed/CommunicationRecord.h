// Records of operations for profilers and execution traces, with NCCL's fields and names, because
// tools that read traces look for these. Does nothing while no profiler is active.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc/extras/distributed/Engine.h"
#include "csrc/extras/distributed/GroupState.h"

namespace at::openreg {

using EnqueueRequest = std::function<c10::intrusive_ptr<c10d::Work>(Request)>;

// Whether a profiler or an observer is recording.
inline bool isRecording() { return at::hasCallbacks() && at::isRecordFunctionEnabled(); }

// Enqueues a request within an event "record_param_comms" and one such as "occl:all_reduce", whose
// prefix is the name of the backend.
c10::intrusive_ptr<c10d::Work> recordCommunication(const GroupState& state, const char* backend,
                                                   Request request, const EnqueueRequest& enqueue);

// Records that the program waits for an operation.
void recordWait(const GroupState& state, uint64_t number, bool is_message,
                const std::function<void()>& wait);

}  // namespace at::openreg
