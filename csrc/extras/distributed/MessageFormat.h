// Checks that the ranks of a group use the same message format, before the first message is sent.
//
// Note [Format of messages]
// If the size of a header or the room for data behind it differs, a message is longer or shorter
// than the receive that was posted for it, and Gloo ends a process whose receive buffer is too
// small. So each rank writes a description of its format to the store, and a rank that finds a
// different description makes no connection. The description is plain text, which every version can
// read and compare.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// The message format of this version, such as "version 1: 512 + 1536 bytes".
OPENREG_EXPORT std::string messageFormat();

// Waits until all ranks have written their formats.
// Errors: DistBackendError if one differs, or on timeout.
void agreeOnMessageFormat(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                          std::chrono::milliseconds timeout);

}  // namespace at::openreg
