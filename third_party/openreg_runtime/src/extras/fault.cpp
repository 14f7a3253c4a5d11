#include "extras/fault.h"

#include <charconv>
#include <iterator>

#include "base/mutex.h"
#include "extras/fault_signal.h"
#include "extras/peer.h"
#include "extras/watch.h"
#include "memory/arena.h"
#include "queue/device.h"

namespace openreg {
namespace {

// A line of text that needs no allocation. Text that does not fit is cut.
class Line {
 public:
  Line& add(const char* text) {
    while (*text != '\0' && size_ < sizeof(text_)) text_[size_++] = *text++;
    return *this;
  }

  Line& add(uint64_t number, int base = 10) {
    char digits[21] = {};
    std::to_chars(std::begin(digits), std::end(digits) - 1, number, base);
    return add(digits);
  }

  Line& add_address(uint64_t address) { return add("0x").add(address, 16); }

  void write() const { os::write_error(text_, size_); }

 private:
  char text_[400];
  size_t size_ = 0;
};

void add_allocation(Line& line, const Allocation& found, uintptr_t address) {
  line.add(", allocation ").add_address(found.address);
  line.add(" (size ").add(found.size).add(" bytes) + offset ").add(address - found.address);
}

void add_own(Line& line, int device_index, uintptr_t address) {
  const Device* device = Device::active(device_index);
  if (device == nullptr) return;
  bool is_known = false;
  const std::optional<Allocation> found = device->arena().try_find(address, &is_known);
  if (found) {
    add_allocation(line, *found, address);
  } else if (is_known) {
    line.add(", in no live allocation");
  }
}

void add_imported(Line& line, const ImportedAllocation& found, uintptr_t address) {
  line.add(" of process ").add(static_cast<uint64_t>(found.process));
  if (found.address == 0) {
    line.add(", in no opened allocation");
  } else {
    add_allocation(line, {found.address, found.size}, address);
  }
}

void describe_fault(uintptr_t address) {
  const AddressSpace* space = AddressSpace::get();
  if (space == nullptr) return;
  const int own_device = space->device_of(address);
  std::optional<ImportedAllocation> imported;
  bool is_known = false;
  if (own_device < 0) imported = try_find_imported(address, &is_known);
  if (own_device < 0 && !imported) return;
  Line line;
  line.add("openreg: the host touched device memory: address ").add_address(address);
  line.add(", device ").add(static_cast<uint64_t>(imported ? imported->device : own_device));
  if (imported) {
    add_imported(line, *imported, address);
  } else {
    add_own(line, own_device, address);
  }
  line.add("; copy it to the host first (or set OPENREG_MEMORY_PROTECTION=0 to debug)\n");
  line.write();
}

bool on_fault(const os::Fault& fault) {
  if (resolve_watched_fault(fault)) return true;
  describe_fault(fault.address);
  return false;
}

[[maybe_unused]] const bool is_fault_handler_installed = [] {
  install_memory_protection = install_fault_handler;
  return true;
}();

}  // namespace

bool install_fault_handler() {
  static constinit Mutex mutex;
  const Lock lock(mutex);
  return os::observe_faults(on_fault);
}

}  // namespace openreg
