// Allocations: device memory and pinned host memory, and what a pointer points at.
//
// Lock order: the lock of pinned memory, then the arenas' by device number. Only a fork holds more
// than one.
#pragma once

#include <openreg/memory.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace openreg {

// Where `size` bytes from a pointer lie.
struct Place {
  orMemoryType type;
  int device;            // -1 unless type is orMemoryTypeDevice
  void* kernel_address;  // where the bytes can be read and written
};

// Finds the place of a range of more than 0 bytes. Fails with orErrorIllegalAddress if it begins
// in device memory that is not allocated, orErrorInvalidValue if it leaves its device or pinned
// allocation, wraps around, or begins at a kernel address.
orError_t find_place(const void* pointer, size_t size, const char* function, Place* place);

// The following do what the functions of openreg/memory.h do that they are named after in error
// texts and traces, without the waits and checks of streams; see queue/memory_calls.cpp.

// --- Device memory

// Allocates `size` > 0 bytes of a device that has been created.
orError_t allocate(int device, size_t size, void** pointer);

// Fails unless the pointer is the start of a live allocation; stores its device.
orError_t check_allocated(const void* pointer, int* device);

// Ends an allocation of which check_allocated() has said that it is live. Fails if another thread
// has ended it since then.
orError_t release(void* pointer);

// Fails unless the pointer, if it is not null, and the size are multiples of the granularity.
orError_t check_mappable(const void* pointer, size_t size, const char* function);

// Reserves addresses of a device that has been created.
orError_t reserve(int device, size_t size, void** pointer);
orError_t end_reservation(void* pointer);

// Fail unless the range lies in one reservation, and none of it has memory, or all of it; store the
// device.
orError_t check_unmapped(const void* pointer, size_t size, int* device);
orError_t check_mapped(const void* pointer, size_t size, int* device);

// For ranges that have been checked. Fail if another thread has changed them since then.
orError_t map(int device, void* pointer, size_t size);
orError_t unmap(int device, void* pointer, size_t size);

// --- Pinned memory

orError_t allocate_pinned(size_t size, void** pointer);

// Fails unless the pointer is the start of memory that orMallocHost allocated.
orError_t check_pinned(const void* pointer, const char* function);

// As release().
orError_t release_pinned(void* pointer, const char* function);

}  // namespace openreg
