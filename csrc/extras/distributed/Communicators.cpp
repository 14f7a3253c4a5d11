#include "csrc/extras/distributed/Communicators.h"

#include <c10/util/StringUtil.h>
#include <openreg/device.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iomanip>
#include <sstream>

#include "csrc/extras/distributed/GroupState.h"
#include "csrc/extras/distributed/LockWithoutGil.h"
#include "torch_openreg/core/Exception.h"

namespace at::openreg {
namespace {

// Where NCCL puts the number of a device's bus.
constexpr int kBusShift = 12;

// As for NCCL, the same for all processes of a machine: its name and the id of its boot, or
// NCCL_HOSTID.
std::string hostName() {
  if (const char* const given = std::getenv("NCCL_HOSTID")) {
    return given;
  }
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return name.data() + boot;
}

std::string hexadecimal(uint64_t value) {
  std::ostringstream text;
  text << std::hex << value;
  return text.str();
}

// The device's place on the bus.
std::string busOf(c10::Device device) {
  orDeviceProp properties{};
  OPENREG_CHECK(orGetDeviceProperties(&properties, device.index()));
  return hexadecimal(static_cast<uint64_t>(properties.physicalOrdinal) << kBusShift);
}

}  // namespace

void Communicators::join(c10::Device device) {
  size_t number = 0;
  {
    const LockWithoutGil lock(mutex_);
    if (!devices_.insert(device.index()).second) {
      return;
    }
    number = devices_.size();
  }
  join(c10::str("communicator", number), device);
}

void Communicators::joinPair(c10::Device device, int peer) {
  {
    const LockWithoutGil lock(mutex_);
    if (peer == rank_ || !peers_.insert(peer).second) {
      return;
    }
  }
  join(c10::str("communicator", std::min(rank_, peer), ":", std::max(rank_, peer)), device);
}

void Communicators::join(const std::string& communicator, c10::Device device) {
  const std::string bus = busOf(device);
  const std::string host = hexadecimal(std::hash<std::string>()(hostName()));
  const std::string own = std::to_string(rank_);
  const std::string first =
      store_->compareSet(c10::str(communicator, "/", host, "/", bus), std::string(), own);
  if (first != own) {
    throwDistributedError(
        c10::str("NCCL error in: Communicators.cpp:", __LINE__,
                 ", invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.23.4\n"
                 "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
                 "Last error:\nDuplicate GPU detected : rank ",
                 rank_, " and rank ", first, " both on CUDA device ", bus));
  }
}

}  // namespace at::openreg
