// Settings: the values of the runtime's environment variables. See openreg/setting.h.
#pragma once

#include <openreg/setting.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace openreg {

// See openreg/schedule.h.
struct Schedule {
  enum class Kind : uint8_t { Free, Lazy, Eager, Seeded };

  Kind kind = Kind::Free;
  uint64_t seed = 0;
};

std::optional<Schedule> parse_schedule(std::string_view text);

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

// Which variable of the environment leaves the process without a device, for error texts.
std::string no_device_text();

}  // namespace openreg
