#include "csrc/aten/FallbackStats.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>

namespace at::openreg {
namespace {

constexpr const char* kVariable = "OPENREG_FALLBACK";
constexpr std::array<const char*, 3> kModeNames = {"silent", "warn", "error"};

std::atomic<FallbackMode>& mode() {
  static std::atomic<FallbackMode> value = [] {
    const char* text = std::getenv(kVariable);
    return text == nullptr ? FallbackMode::Silent : parseFallbackMode(text);
  }();
  return value;
}

struct Stats {
  std::mutex mutex;
  std::map<std::string, int64_t> calls;  // guarded by mutex
  std::set<std::string> warned;          // operators warned about in this mode; guarded by mutex
};

Stats& stats() {
  static auto* instance = new Stats();
  return *instance;
}

}  // namespace

FallbackMode fallbackMode() { return mode().load(std::memory_order_relaxed); }

void setFallbackMode(FallbackMode value) {
  const std::lock_guard<std::mutex> lock(stats().mutex);
  stats().warned.clear();
  mode().store(value, std::memory_order_relaxed);
}

const char* fallbackModeName(FallbackMode value) { return kModeNames[static_cast<size_t>(value)]; }

FallbackMode parseFallbackMode(const std::string& name) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (name == kModeNames[i]) {
      return static_cast<FallbackMode>(i);
    }
  }
  TORCH_CHECK_VALUE(false, "fallback mode (", kVariable,
                    "): expected \"silent\", \"warn\" or \"error\", got \"", name, "\"");
}

std::map<std::string, int64_t> fallbackStats() {
  const std::lock_guard<std::mutex> lock(stats().mutex);
  return stats().calls;
}

void resetFallbackStats() {
  const std::lock_guard<std::mutex> lock(stats().mutex);
  stats().calls.clear();
}

void countFallback(const std::string& name) {
  bool is_first_warning = false;
  {
    const std::lock_guard<std::mutex> lock(stats().mutex);
    ++stats().calls[name];
    if (fallbackMode() == FallbackMode::Silent) {
      return;
    }
    is_first_warning = stats().warned.insert(name).second;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      fallbackMode() == FallbackMode::Warn, name,
      " has no kernel for openreg and the fallback mode is \"error\". With "
      "torch.openreg.set_fallback_mode(\"silent\") it runs the CPU's kernel, synchronously.");
  if (is_first_warning) {
    TORCH_WARN(name, " has no kernel for openreg: it runs the CPU's kernel, synchronously.");
  }
}

}  // namespace at::openreg
