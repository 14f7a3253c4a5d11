// Settings: the values of the environment variables in openreg/setting.h.
#pragma once

#include <openreg/setting.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"
#include "extras/schedule.h"

namespace openreg {

struct Settings {
  int device_count = 0;              // before OPENREG_VISIBLE_DEVICES is applied
  size_t device_memory = 0;          // a multiple of the page size
  std::vector<int> visible_devices;  // position: a device's number; value: its physical number
  bool has_memory_protection = true;
  bool is_launch_blocking = false;
  size_t queue_memory = 0;  // 0: no limit
  Schedule schedule;
};

// Reads the environment, the first time, and fails if a value is bad.
orError_t check_settings();

// The settings. Must not be used before check_settings() succeeded.
const Settings& settings();

// Hold the lock of the settings' first reading over a fork.
void lock_settings();
void unlock_settings();

// Which variable of the environment leaves the process without a device, for error texts.
std::string no_device_text();

}  // namespace openreg
