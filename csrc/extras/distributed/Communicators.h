// The devices of a group's ranks, where the device type is CUDA.
//
// Note [Communicators]
// NCCL joins ranks to communicators, and refuses one in which two ranks have the same device of a
// machine. A group has a communicator for the first device that its ranks use for collectives, one
// for the second, and so on; and one for each two ranks that exchange messages. A rank that joins a
// communicator puts its number into the store, under the name of its device. If another rank's is
// there, the call fails, and so does the group. The other rank's operation then fails, too, with
// the same text, which NCCL would raise at its call.
#pragma once

#include <c10/core/Device.h>

#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "csrc/core/Mutex.h"

namespace at::openreg {

class Communicators {
 public:
  Communicators(c10::intrusive_ptr<c10d::Store> store, int rank)
      : store_(std::move(store)), rank_(rank) {}

  // Joins the communicator for collectives on the device, or for messages with another rank. Only
  // the first call for a device or a rank uses the store.
  // Errors: DistBackendError if a rank of the communicator has the same device.
  void join(c10::Device device);
  void joinPair(c10::Device device, int peer);

 private:
  void join(const std::string& communicator, c10::Device device);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  c10::openreg::Mutex mutex_;
  std::set<c10::DeviceIndex> devices_ OPENREG_GUARDED_BY(mutex_);
  std::set<int> peers_ OPENREG_GUARDED_BY(mutex_);
};

}  // namespace at::openreg
