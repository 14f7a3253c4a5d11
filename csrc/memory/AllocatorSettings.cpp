#include "csrc/memory/AllocatorSettings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

namespace c10::openreg {
namespace {

using CachingAllocator::AcceleratorAllocatorConfig;

std::string knownKeys() {
  const auto& keys = AcceleratorAllocatorConfig::getKeys();
  std::vector<std::string> sorted(keys.begin(), keys.end());
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (const std::string& key : sorted) {
    text += text.empty() ? key : ", " + key;
  }
  return text;
}

void check(const std::string& settings) {
  const CachingAllocator::ConfigTokenizer tokens(settings);
  for (size_t i = 0; i < tokens.size(); i = tokens.skipKey(i) + 2) {
    TORCH_CHECK_VALUE(AcceleratorAllocatorConfig::getKeys().count(tokens[i]) == 1,
                      "allocator settings: expected keys out of ", knownKeys(), ", got '",
                      tokens[i], "', which openreg does not have");
  }
  if (AcceleratorAllocatorConfig::use_expandable_segments()) {
    TORCH_WARN_ONCE(
        "allocator settings: expandable_segments is not supported by openreg and ignored");
  }
}

const CachingAllocator::DeviceConfigParserHookRegistry registration(&check, {});

}  // namespace

void checkAllocatorSettings() {
  static std::once_flag once;
  // After an exception the next call checks again.
  std::call_once(once, [] { check(AcceleratorAllocatorConfig::last_allocator_settings()); });
}

}  // namespace c10::openreg
