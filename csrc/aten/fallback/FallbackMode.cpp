#include "csrc/aten/fallback/FallbackMode.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>

#include "csrc/core/Settings.h"

namespace at::openreg {
namespace {

// docs: setting
const c10::openreg::Setting kInitialMode{
    "OPENREG_FALLBACK", "silent", "silent warn error",
    "What the PyTorch backend's fallback does when a call makes the host wait."};
// docs: end

constexpr std::array<const char*, 3> kModeNames = {"silent", "warn", "error"};

std::atomic<FallbackMode>& mode() {
  static std::atomic<FallbackMode> value = parseFallbackMode(std::string(kInitialMode.text()));
  return value;
}

std::atomic<int> mode_number = 1;

}  // namespace

FallbackMode fallbackMode() { return mode().load(std::memory_order_relaxed); }

void setFallbackMode(FallbackMode value) {
  mode().store(value, std::memory_order_relaxed);
  mode_number.fetch_add(1, std::memory_order_relaxed);
}

int fallbackModeNumber() { return mode_number.load(std::memory_order_relaxed); }

const char* fallbackModeName(FallbackMode value) { return kModeNames[static_cast<size_t>(value)]; }

FallbackMode parseFallbackMode(const std::string& name) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (name == kModeNames[i]) {
      return static_cast<FallbackMode>(i);
    }
  }
  TORCH_CHECK_VALUE(false, "fallback mode: expected \"silent\", \"warn\" or \"error\", got \"",
                    name, "\"");
}

}  // namespace at::openreg
