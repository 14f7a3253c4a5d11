/* Memory: device allocations, pinned host allocations, copies and fills.
 *
 * Note [Two addresses]
 * A device's memory is one arena with two address ranges, a constant distance apart.
 * Allocations are identified by their device address, in a range that nothing may access: a
 * host that dereferences one faults, and the fault handler names the allocation before the
 * process ends. Kernels add the distance (orGetKernelOffset) and use the other range, which
 * is readable and writable. No call changes a page's protection, so no operation pays a
 * system call for it. With OPENREG_MEMORY_PROTECTION=0 both addresses are the same and the
 * distance is 0.
 *
 * On submission, copies and fills check that a device range lies inside one live allocation
 * (orErrorIllegalAddress if it begins in none, orErrorInvalidValue if it exceeds it), that a range
 * which begins in pinned memory does not exceed its allocation (orErrorInvalidValue), and that the
 * kind fits both pointers. Kernel addresses are not valid arguments. The size of a range of other
 * host memory is the caller's to get right.
 */
#ifndef OPENREG_MEMORY_H
#define OPENREG_MEMORY_H

#include <openreg/error.h>

/* Every allocation starts at a multiple of this, which is also the widest vector load. */
#define OPENREG_MEMORY_ALIGNMENT 512

/* Reserved addresses get memory in multiples of this, as on a GPU. */
#define OPENREG_MAPPING_GRANULARITY 2097152

/* Up to this size, an asynchronous copy from unregistered host memory copies its source aside and
 * does not wait. Beyond it, the second pass over the data costs more than the wait. */
#define OPENREG_MAX_STAGED_COPY 65536

typedef enum orMemcpyKind {
  orMemcpyHostToHost = 0,
  orMemcpyHostToDevice = 1,
  orMemcpyDeviceToHost = 2,
  orMemcpyDeviceToDevice = 3, /* on one device or between two */
  orMemcpyDefault = 4         /* inferred from the pointers */
} orMemcpyKind;

typedef enum orMemoryType {
  orMemoryTypeUnregistered = 0, /* host memory that the runtime does not know */
  orMemoryTypeHost = 1,         /* pinned, from orMallocHost or orHostRegister */
  orMemoryTypeDevice = 2
} orMemoryType;

typedef struct orPointerAttributes {
  orMemoryType type;
  int device;           /* owner; the allocating thread's current device for pinned memory;
                           -1 if unregistered */
  void* allocationBase; /* start of the allocation the pointer lies in, NULL if unregistered */
  size_t allocationSize;
} orPointerAttributes;

OPENREG_EXTERN_C_BEGIN

/* Allocates memory on the current device. A size of 0 gives a null pointer. Fresh memory
 * reads as zeros; the machine provides a page when it is first touched.
 * Errors: orErrorMemoryAllocation when the device has no free range of that size. */
OPENREG_API orError_t orMalloc(void** pointer, size_t size) OPENREG_CHECKED;

/* Frees device memory, of any device. Null is allowed. Waits for the device to finish all
 * submitted work first, and leaves asynchronous errors where they are.
 * Errors: orErrorInvalidValue if the pointer is not the start of a live allocation;
 * orErrorMemoryAllocation if the host has no memory for the range that becomes free: then nothing
 * is freed. */
OPENREG_API orError_t orFree(void* pointer) OPENREG_CHECKED;

/* Reserves addresses of the current device that hold no memory. Those of a device are a multiple of
 * its memory, if the machine has as many.
 * Errors: orErrorInvalidValue unless the size is a positive multiple of
 * OPENREG_MAPPING_GRANULARITY; orErrorMemoryAllocation when there are not as many left. */
OPENREG_API orError_t orMemAddressReserve(void** pointer, size_t size) OPENREG_CHECKED;

/* Ends a reservation. Null is allowed.
 * Errors: orErrorInvalidValue if the pointer is not the start of one, or if a part has memory. */
OPENREG_API orError_t orMemAddressFree(void* pointer) OPENREG_CHECKED;

/* Gives memory to reserved addresses that have none. It reads as zeros, and counts as allocated
 * with what touches it: a pointer's allocation is all memory around it that has no gap.
 * Errors: orErrorInvalidValue unless both are multiples of OPENREG_MAPPING_GRANULARITY, and the
 * range lies in one reservation and has no memory; orErrorMemoryAllocation when the device has less
 * free memory. */
OPENREG_API orError_t orMemMap(void* pointer, size_t size) OPENREG_CHECKED;

/* Takes the memory of reserved addresses back. Waits as orFree().
 * Errors: as orMemMap(), of a range all of which has memory; orErrorMemoryAllocation if the host
 * has no memory for the bookkeeping: then nothing has changed, but the memory reads as zeros. */
OPENREG_API orError_t orMemUnmap(void* pointer, size_t size) OPENREG_CHECKED;

/* Allocates pinned host memory: ordinary memory, known to the runtime, so that copies from
 * and to it are asynchronous. A size of 0 gives a null pointer. While watching is on (watch.h), its
 * pages are mapped twice. */
OPENREG_API orError_t orMallocHost(void** pointer, size_t size) OPENREG_CHECKED;

/* Stores the address at which kernels find pinned memory: another one if it was allocated while
 * watching was on (watch.h), else the same. Copies and fills take care of that by themselves. Any
 * pointer is a valid argument; of one that is not pinned memory the result is the same. */
OPENREG_API orError_t orHostGetKernelPointer(void** kernel_pointer,
                                             const void* pointer) OPENREG_CHECKED;

/* Frees pinned host memory. Null is allowed. Waits for all devices to finish all submitted work
 * first, as any of it may use the memory, and leaves asynchronous errors where they are.
 * Errors: orErrorInvalidValue if the pointer is not the start of a live allocation;
 * orErrorNotPermitted from work on a stream, which would wait for itself; orErrorMemoryAllocation
 * as orFree, if the memory was allocated while watching was on. */
OPENREG_API orError_t orFreeHost(void* pointer) OPENREG_CHECKED;

/* The same without the wait, from any thread and from work on a stream, too: for a caller that
 * knows that no work that is still to finish uses the memory, as an allocator does whose events
 * say so. Any other work may be pending.
 * Errors: those of orFreeHost, but orErrorNotPermitted. */
OPENREG_API orError_t orFreeHostUnused(void* pointer) OPENREG_CHECKED;

/* Makes host memory that the caller has allocated count as pinned: copies from and to it are
 * asynchronous. Owns: the memory stays the caller's, who must keep it, and end the registration
 * before it is freed.
 * Errors: orErrorInvalidValue if the size is 0, or if a part of it is device or pinned memory. */
OPENREG_API orError_t orHostRegister(void* pointer, size_t size) OPENREG_CHECKED;

/* Ends a registration. Does not wait: no work that is still to finish may use the memory.
 * Errors: orErrorInvalidValue if the pointer is not the start of registered memory. */
OPENREG_API orError_t orHostUnregister(void* pointer) OPENREG_CHECKED;

/* Copies and waits. Enqueued on the default stream of the device involved (of the
 * destination's, if two are), like every function here without a stream argument.
 * Errors: orErrorInvalidMemcpyDirection if the kind contradicts the pointers,
 * those of a bad range, and the stream's asynchronous error. */
OPENREG_API orError_t orMemcpy(void* destination, const void* source, size_t size,
                               orMemcpyKind kind) OPENREG_CHECKED;

/* The same on a stream. If the stream has no work left, the calling thread copies. */
OPENREG_API orError_t orMemcpyWithStream(void* destination, const void* source, size_t size,
                                         orMemcpyKind kind, orStream_t stream) OPENREG_CHECKED;

/* Enqueues a copy. With unregistered host memory, when the call returns, a source may be changed or
 * freed, and a destination holds the data: a source of up to OPENREG_MAX_STAGED_COPY bytes is
 * copied aside, otherwise the call waits. Pinned host memory must stay alive and untouched until
 * the copy is done. */
OPENREG_API orError_t orMemcpyAsync(void* destination, const void* source, size_t size,
                                    orMemcpyKind kind, orStream_t stream) OPENREG_CHECKED;

/* Sets bytes of device or pinned memory and waits. */
OPENREG_API orError_t orMemset(void* pointer, int value, size_t size) OPENREG_CHECKED;

/* Enqueues a fill of device or pinned memory. */
OPENREG_API orError_t orMemsetAsync(void* pointer, int value, size_t size,
                                    orStream_t stream) OPENREG_CHECKED;

/* Stores the free and total memory of a device. Creates no device.
 * "Free" is what is not allocated; fragmentation may keep one allocation from getting it. */
OPENREG_API orError_t orMemGetInfo(size_t* free_size, size_t* total_size,
                                   int device) OPENREG_CHECKED;

/* Describes what a pointer points at. Any pointer is a valid argument. Never
 * orErrorForked: a child knows the addresses of its parent, though it cannot use them. */
OPENREG_API orError_t orPointerGetAttributes(orPointerAttributes* attributes,
                                             const void* pointer) OPENREG_CHECKED;

/* Stores the range of device addresses in which all memory of a device lies, allocated or not, and
 * its reserved addresses. It is constant from the creation of the first device on; creates the
 * current one if there is none. Errors: orErrorInvalidDevice. */
OPENREG_API orError_t orDeviceGetAddressRange(void** begin, size_t* size,
                                              int device) OPENREG_CHECKED;

/* Stores what to add to a device address to get the address a kernel uses. The same for all
 * devices, constant from the creation of the first device on; creates the current one if there is
 * none. See Note [Two addresses]. */
OPENREG_API orError_t orGetKernelOffset(ptrdiff_t* offset) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
