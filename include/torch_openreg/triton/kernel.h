// The interface between a compiled Triton kernel and its caller. It is part of the source of each
// kernel, and of the backend that launches them; it includes nothing of C++'s library.
//
// A kernel is a shared library with one function, OPENREG_TRITON_ENTRY, that runs all programs of a
// grid and returns. Unless a field says otherwise: addresses are device addresses, which the kernel
// turns into addresses of its process at each access; sizes are bytes. Any number of threads may
// call a kernel at once. A kernel never throws, and allocates nothing that outlives the call.
#pragma once

#include <stdint.h>

// What ended a launch.
enum OpenRegTritonStatus : int32_t {
  OPENREG_TRITON_SUCCESS = 0,
  // An access outside of all memory that the kernel may use. Nothing has been touched there.
  OPENREG_TRITON_ILLEGAL_READ = 1,
  OPENREG_TRITON_ILLEGAL_WRITE = 2,
  OPENREG_TRITON_ILLEGAL_ATOMIC = 3,
  OPENREG_TRITON_MISALIGNED_ATOMIC = 4,
  // tl.device_assert; its message is in the table of locations.
  OPENREG_TRITON_ASSERT = 5,
  // An index of tl.gather outside of its source; `address` is the index, `size` the extent.
  OPENREG_TRITON_INDEX = 6,
  // A loop of a program has waited for longer than `wait_limit_ns`.
  OPENREG_TRITON_WAIT = 7,
  // The host has no memory for the tiles of a program; `size` is what a thread needs.
  OPENREG_TRITON_OUT_OF_MEMORY = 8,
};

// The first failure of a launch.
struct OpenRegTritonError {
  OpenRegTritonStatus status;
  int32_t location;     // an index of the kernel's table of locations, or -1
  int32_t argument;     // the kernel argument from which the address was computed, or -1
  uint32_t program[3];  // the program's ids
  uint64_t address;     // of the first illegal byte's element
  uint64_t size;        // of the element
};

enum OpenRegTritonAccessKind : int32_t {
  OPENREG_TRITON_READ = 0,
  OPENREG_TRITON_WRITE = 1,
  OPENREG_TRITON_ATOMIC = 2,
  // Of one element that other programs may change: an atomic read.
  OPENREG_TRITON_VOLATILE_READ = 3,
};

// Bytes that a program is about to use: `count` elements of `size`, `stride` bytes apart.
struct OpenRegTritonAccess {
  OpenRegTritonAccessKind kind;
  int32_t location;  // as in OpenRegTritonError
  int32_t argument;
  uint32_t program[3];
  uint64_t address;
  uint64_t size;
  uint64_t count;
  int64_t stride;
};

// One launch. The kernel changes nothing in it.
struct OpenRegTritonLaunch {
  uint32_t grid[3];       // each at least 1
  int32_t threads;        // how many threads run programs, the caller's among them; at least 1
  int64_t kernel_offset;  // what to add to a device address to access it
  // How long a loop may wait for memory to change, in nanoseconds; 0 for no limit.
  uint64_t wait_limit_ns;
  // Passed to the functions below. All of these may be called by several threads at once.
  void* context;
  // Whether all bytes lie in one live allocation. It is asked about addresses that lie in no
  // argument's storage, such as those of pointers that are found in memory. Null: none does.
  bool (*is_allocated)(void* context, uint64_t address, uint64_t size);
  // Writes what tl.device_print prints, whole lines. Null: to the standard output.
  void (*print)(void* context, const char* text, uint64_t size);
  // Told of each access before it happens, by kernels that were compiled to be observed. Null:
  // nothing is told.
  void (*observe)(void* context, const OpenRegTritonAccess* access);
};

// Runs all programs of the grid. Programs start in the order of their ids, x first, so that those
// that wait for earlier ones make progress. The first failure ends the launch: no program starts
// after it; loops that may wait end, and the other programs that run go on to their end.
//
// `slots` has, for each parameter of the kernel in order:
// - a pointer: three slots, its value, and the begin and the end of the storage that the argument
//   may access. A caller that has no storage passes 0 and 0: then `is_allocated` is asked. One
//   without checks passes 0 and UINT64_MAX.
// - an integer: one slot, the value, sign-extended or zero-extended.
// - a floating-point number: one slot, the bits of the value as a double.
//
// Returns the status; stores the failure in `error` if there is one, else writes nothing there.
using OpenRegTritonEntry = OpenRegTritonStatus (*)(const OpenRegTritonLaunch* launch,
                                                   const uint64_t* slots,
                                                   OpenRegTritonError* error);
#define OPENREG_TRITON_ENTRY openreg_triton_kernel
