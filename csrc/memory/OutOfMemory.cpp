#include "csrc/memory/OutOfMemory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/StringUtil.h>

#include "csrc/core/DeviceName.h"

namespace c10::openreg {
namespace {

using CachingAllocator::format_size;

std::string ownText(const OutOfMemory& failed) {
  std::string limits;
  if (failed.allowed < failed.total) {
    limits = c10::str(" This process may reserve ", format_size(failed.allowed), " (", moduleName(),
                      ".set_per_process_memory_fraction).");
  }
  std::string pools;
  if (failed.reserved_privately > 0) {
    pools = c10::str(" Private pools of graphs and of MemPool hold ",
                     format_size(failed.reserved_privately), ".");
  }
  return c10::str(kDeviceName, " out of memory. Tried to allocate ", format_size(failed.requested),
                  ". Device ", static_cast<int>(failed.device), " has a total capacity of ",
                  format_size(failed.total), " of which ", format_size(failed.free), " is free.",
                  limits, " Of the memory in use, ", format_size(failed.allocated),
                  " is allocated by PyTorch, and ", format_size(failed.reserved - failed.allocated),
                  " is reserved by PyTorch but unallocated.", pools, " ", adviceOnMemory());
}

constinit OutOfMemoryText text_in_use = &ownText;

}  // namespace

std::string describe(const OutOfMemory& failed) { return text_in_use(failed); }

std::string adviceOnMemory() {
  return c10::str(
      "The capacity is the setting OPENREG_DEVICE_MEMORY. If much is reserved but "
      "unallocated, it may be fragmented: see ",
      moduleName(), ".memory_summary(), and max_split_size_mb in PYTORCH_ALLOC_CONF.");
}

void setOutOfMemoryText(OutOfMemoryText text) noexcept { text_in_use = text; }

}  // namespace c10::openreg
