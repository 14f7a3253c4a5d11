#include "csrc/memory/AllocatorSettings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <string>

namespace c10::openreg {
namespace {

using CachingAllocator::AcceleratorAllocatorConfig;

void check(const std::string& /*settings*/) {
  if (AcceleratorAllocatorConfig::use_expandable_segments()) {
    TORCH_WARN_ONCE(
        "allocator settings: expandable_segments is not supported by openreg and ignored");
  }
}

const CachingAllocator::DeviceConfigParserHookRegistry hook_registration(&check, {});

}  // namespace

void checkAllocatorSettings() { check(AcceleratorAllocatorConfig::last_allocator_settings()); }

}  // namespace c10::openreg
