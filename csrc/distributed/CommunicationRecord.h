// What profilers and execution traces learn of an operation: what NCCL's group tells them, under
// the same names, as programs that read traces look for them. Without a profiler nothing is done.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc/distributed/Engine.h"
#include "csrc/distributed/GroupState.h"

namespace at::openreg {

using EnqueueRequest = std::function<c10::intrusive_ptr<c10d::Work>(Request)>;

// Whether anybody wants records now.
inline bool isRecording() { return at::hasCallbacks() && at::isRecordFunctionEnabled(); }

// Enqueues a request within an event "record_param_comms" and one such as "occl:all_reduce", whose
// prefix is the name of the backend.
c10::intrusive_ptr<c10d::Work> recordCommunication(const GroupState& state, const char* backend,
                                                   Request request, const EnqueueRequest& enqueue);

// Records that the program waits for an operation.
void recordWait(const GroupState& state, uint64_t number, bool is_message,
                const std::function<void()>& wait);

}  // namespace at::openreg
