#include "extras/fault.h"

#include <openreg/fault.h>

#include <atomic>
#include <charconv>
#include <iterator>

#include "base/mutex.h"
#include "base/os.h"
#include "base/process.h"
#include "extras/fault_signal.h"
#include "extras/peer.h"
#include "extras/watch.h"
#include "memory/arena.h"
#include "queue/device.h"

namespace openreg {
namespace {

// A handler of orFaultHandlerAdd(). Never destroyed, as a fault may be asking it.
struct Handler {
  const orFaultFn function;
  void* const context;
  Handler* const next;  // added for the first time before
  std::atomic<bool> is_on;
};

std::atomic<Handler*> last_handler{nullptr};
constinit Mutex handlers_mutex;  // of those that change them

// The handler that was added with the context, also if it was removed; null if there is none.
Handler* find_handler(orFaultFn function, const void* context) {
  Handler* handler = last_handler.load(std::memory_order_acquire);
  while (handler != nullptr && (handler->function != function || handler->context != context)) {
    handler = handler->next;
  }
  return handler;
}

orFaultAccess access_for_handlers(const os::Fault& fault) {
  switch (fault.access) {
    case os::FaultAccess::Read:
      return orFaultRead;
    case os::FaultAccess::Write:
      return orFaultWrite;
    case os::FaultAccess::Unknown:
      break;
  }
  return orFaultUnknown;
}

bool ask_handlers(const os::Fault& fault) {
  const orFault asked{reinterpret_cast<const void*>(fault.address), access_for_handlers(fault),
                      fault.machine};
  for (Handler* handler = last_handler.load(std::memory_order_acquire); handler != nullptr;
       handler = handler->next) {
    if (handler->is_on.load() && handler->function(handler->context, &asked) != 0) return true;
  }
  return false;
}

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
  const Arena* arena = arena_of(device_index);
  if (arena == nullptr) return;
  bool is_known = false;
  const std::optional<Allocation> found = arena->try_find(address, &is_known);
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
  if (ask_handlers(fault)) return true;
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

using namespace openreg;

extern "C" {

orError_t orFaultHandlerAdd(orFaultFn handler, void* context) {
  return guarded([&] {
    if (handler == nullptr) {
      return fail(orErrorInvalidValue, "orFaultHandlerAdd: the handler is null");
    }
    const Lock lock(handlers_mutex);
    Handler* known = find_handler(handler, context);
    if (known != nullptr && known->is_on.load()) {
      return fail(orErrorInvalidValue, "orFaultHandlerAdd: the handler was added before");
    }
    if (known == nullptr) {
      known = new Handler{handler, context, last_handler.load(), false};
      last_handler.store(known, std::memory_order_release);
    }
    if (!install_fault_handler()) {
      return fail(orErrorOperatingSystem, os::error_text("sigaction"));
    }
    known->is_on.store(true);
    return orSuccess;
  });
}

orError_t orFaultHandlerRemove(orFaultFn handler, void* context) {
  return guarded([&] {
    const Lock lock(handlers_mutex);
    Handler* known = find_handler(handler, context);
    if (known == nullptr || !known->is_on.exchange(false)) {
      return fail(orErrorInvalidValue, "orFaultHandlerRemove: the handler was not added");
    }
    return orSuccess;
  });
}

}  // extern "C"
