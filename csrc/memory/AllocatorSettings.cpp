#include "csrc/memory/AllocatorSettings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <string>
#include <unordered_set>

namespace c10::openreg {
namespace {

using CachingAllocator::AcceleratorAllocatorConfig;

constinit std::atomic<double> initial_memory_fraction{1.0};

constinit AllocatorKeys keys_in_use{};

void check(const std::string& settings) {
  if (keys_in_use.check != nullptr) {
    keys_in_use.check(settings);
  }
}

// Those that torch has not registered.
std::unordered_set<std::string> newKeys() {
  std::unordered_set<std::string> names;
  if (keys_in_use.names != nullptr) {
    for (const std::string& name : keys_in_use.names()) {
      if (!AcceleratorAllocatorConfig::getKeys().contains(name)) {
        names.insert(name);
      }
    }
  }
  return names;
}

const CachingAllocator::DeviceConfigParserHookRegistry hook_registration(&check, newKeys());

}  // namespace

void setAllocatorKeys(const AllocatorKeys& keys) noexcept { keys_in_use = keys; }

void checkAllocatorSettings() { check(AcceleratorAllocatorConfig::last_allocator_settings()); }

double initialMemoryFraction() { return initial_memory_fraction; }

void setInitialMemoryFraction(double fraction) { initial_memory_fraction = fraction; }

}  // namespace c10::openreg
