// That the ranks of a group can read each other's messages, before the first of them is sent.
//
// Note [Format of messages]
// A header of another size, or with another room for data behind it, is longer or shorter than what
// the receiver has posted, and Gloo ends the process of a receiver whose memory is too small. So
// the ranks tell each other by the store what their messages look like, and a rank that finds
// another one's different makes no connection. What a rank writes there is plain text, which
// every version can read and compare.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// What the messages of this version look like, such as "version 1: 512 + 1536 bytes".
OPENREG_EXPORT std::string messageFormat();

// Waits until all ranks have said what theirs look like.
// Errors: DistBackendError if one differs, or if ranks have not come within the time.
void agreeOnMessageFormat(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                          std::chrono::milliseconds timeout);

}  // namespace at::openreg
