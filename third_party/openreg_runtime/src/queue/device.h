// Devices: created on first use, one for each visible device number.
//
// Lock order: the mutex that creates devices, then a device's mutex, then a stream's. The locks of
// memory/allocation.h are leaves.
#pragma once

#include <openreg/device.h>

#include <cstdint>
#include <vector>

#include "base/device_number.h"
#include "base/error.h"
#include "base/mutex.h"
#include "memory/arena.h"

namespace openreg {

class Stream;

constexpr int least_stream_priority = 0;
constexpr int greatest_stream_priority = -1;

class Device {
 public:
  // Finds a device by its number and creates it if need be. Fails in a forked child.
  static orError_t get(int index, Device** device);

  // The device, null if it has not been created. Async-signal-safe.
  static Device* active(int index);

  // Takes ownership of the file behind the device's memory.
  Device(int index, const AddressSpace& space, int memory_file);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int index() const { return index_; }

  // The file of its memory, open for as long as the process lives: other processes open it by
  // number.
  int memory_file() const { return memory_file_; }

  Arena& arena() { return arena_; }
  const Arena& arena() const { return arena_; }
  Stream& default_stream() { return *default_stream_; }

  Stream* create_stream(unsigned flags, int priority);

  // The live stream with this number, null if there is none.
  Stream* find_stream(uint64_t id);

  // All streams that may have work or a failure, destroyed ones too.
  std::vector<Stream*> streams();

  // Whether work that was submitted is not done.
  bool is_busy();

  // Waits for all work submitted so far; ignores failures. Fails as Stream::wait().
  orError_t wait();

  // Gives a sticky failure to all streams, also to those that are created later.
  void fail(FailureRef failure);

 private:
  // Creates a device; stores whether that has been done by this call.
  static orError_t create(int index, bool* is_new);

  const int index_;
  const int memory_file_;
  Arena arena_;

  Mutex mutex_;
  std::vector<Stream*> streams_ OPENREG_GUARDED_BY(mutex_);  // by their numbers
  uint64_t last_stream_id_ OPENREG_GUARDED_BY(mutex_) = 0;
  FailureRef sticky_failure_ OPENREG_GUARDED_BY(mutex_);

  Stream* const default_stream_;
};

// What the first device of the process needs besides itself, if memory is protected: fault.cpp
// installs it. Returns false as os.h says.
using ProtectionFn = bool (*)();
extern ProtectionFn install_memory_protection;

// The devices that have been created, by their numbers.
std::vector<Device*> active_devices();

// The streams of all devices, as of Device::streams().
std::vector<Stream*> all_streams();

}  // namespace openreg
