// The functions of openreg/memory.h that create a device, wait for work, or are refused while
// streams capture. The rest are in memory/allocation.cpp; copies and fills in copy.cpp.

#include <openreg/memory.h>

#include "base/process.h"
#include "memory/allocation.h"
#include "memory/arena.h"
#include "queue/capture_target.h"
#include "queue/device.h"
#include "queue/stream.h"

namespace openreg {
namespace {

// `is_unused`: the caller knows that no work that has not finished uses the memory.
orError_t free_host(void* pointer, bool is_unused, const char* function) {
  if (const orError_t error = check_not_forked()) return error;
  if (pointer == nullptr) return orSuccess;
  if (const orError_t error = check_pinned(pointer, function)) return error;
  if (const orError_t error = check_safe(function)) return error;
  if (is_exiting()) return orSuccess;  // as in orFree()
  if (!is_unused) {
    for (Device* device : active_devices()) {
      if (const orError_t error = device->wait()) return error;
    }
  }
  return release_pinned(pointer, function);
}

// Makes sure that the addresses are reserved, which are those of all devices: with one in use, the
// current one is not needed.
orError_t make_address_space() {
  if (const orError_t error = check_not_forked()) return error;
  Device* device = nullptr;
  return AddressSpace::get() != nullptr ? orSuccess : Device::get(current_device(), &device);
}

}  // namespace
}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orMalloc(void** pointer, size_t size) {
  return guarded([&] {
    if (pointer == nullptr) return fail(orErrorInvalidValue, "orMalloc: pointer is null");
    Device* device = nullptr;
    if (const orError_t error = Device::get(current_device(), &device)) return error;
    if (const orError_t error = device->default_stream().check_sticky()) return error;
    if (const orError_t error = check_safe("orMalloc")) return error;
    if (size == 0) {
      *pointer = nullptr;
      return orSuccess;
    }
    return allocate(device->index(), size, pointer);
  });
}

orError_t orFree(void* pointer) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    if (pointer == nullptr) return orSuccess;
    int device = -1;
    if (const orError_t error = check_allocated(pointer, &device)) return error;
    if (const orError_t error = check_safe("orFree")) return error;
    if (is_exiting()) return orSuccess;  // a command may still use it, and the process ends
    if (const orError_t error = Device::active(device)->wait()) return error;
    return release(pointer);
  });
}

orError_t orMemAddressReserve(void** pointer, size_t size) {
  constexpr const char* function = "orMemAddressReserve";
  return guarded([&] {
    if (pointer == nullptr) return fail_null(function);
    if (const orError_t error = check_mappable(nullptr, size, function)) return error;
    Device* device = nullptr;
    if (const orError_t error = Device::get(current_device(), &device)) return error;
    return reserve(device->index(), size, pointer);
  });
}

orError_t orMemAddressFree(void* pointer) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    return pointer == nullptr ? orSuccess : end_reservation(pointer);
  });
}

orError_t orMemMap(void* pointer, size_t size) {
  constexpr const char* function = "orMemMap";
  return guarded([&] {
    if (const orError_t error = check_mappable(pointer, size, function)) return error;
    if (const orError_t error = check_not_forked()) return error;
    int device = -1;
    if (const orError_t error = check_unmapped(pointer, size, &device)) return error;
    const Stream& stream = Device::active(device)->default_stream();
    if (const orError_t error = stream.check_sticky()) return error;
    if (const orError_t error = check_safe(function)) return error;
    return map(device, pointer, size);
  });
}

orError_t orMemUnmap(void* pointer, size_t size) {
  constexpr const char* function = "orMemUnmap";
  return guarded([&] {
    if (const orError_t error = check_mappable(pointer, size, function)) return error;
    if (const orError_t error = check_not_forked()) return error;
    int device = -1;
    if (const orError_t error = check_mapped(pointer, size, &device)) return error;
    if (const orError_t error = check_safe(function)) return error;
    if (is_exiting()) return orSuccess;  // as in orFree()
    if (const orError_t error = Device::active(device)->wait()) return error;
    return unmap(device, pointer, size);
  });
}

orError_t orMallocHost(void** pointer, size_t size) {
  return guarded([&] {
    if (pointer == nullptr) return fail(orErrorInvalidValue, "orMallocHost: pointer is null");
    if (const orError_t error = check_not_forked()) return error;
    if (const orError_t error = check_device(current_device(), "orMallocHost")) return error;
    if (const orError_t error = check_safe("orMallocHost")) return error;
    if (size == 0) {
      *pointer = nullptr;
      return orSuccess;
    }
    return allocate_pinned(size, pointer);
  });
}

orError_t orFreeHost(void* pointer) {
  return guarded([&] { return free_host(pointer, /*is_unused=*/false, "orFreeHost"); });
}

orError_t orFreeHostUnused(void* pointer) {
  return guarded([&] { return free_host(pointer, /*is_unused=*/true, "orFreeHostUnused"); });
}

orError_t orDeviceGetAddressRange(void** begin, size_t* size, int device) {
  return guarded([&] {
    if (begin == nullptr || size == nullptr) return fail_null("orDeviceGetAddressRange");
    if (const orError_t error = check_device(device, "orDeviceGetAddressRange")) return error;
    if (const orError_t error = make_address_space()) return error;
    const AddressSpace& space = *AddressSpace::get();
    *begin = reinterpret_cast<void*>(space.base_of(device));
    *size = space.stride;
    return orSuccess;
  });
}

orError_t orGetKernelOffset(ptrdiff_t* offset) {
  return guarded_result("orGetKernelOffset", offset, [&] {
    if (const orError_t error = make_address_space()) return error;
    *offset = AddressSpace::get()->kernel_offset;
    return orSuccess;
  });
}

}  // extern "C"
