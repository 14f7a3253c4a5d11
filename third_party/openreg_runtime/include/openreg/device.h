/* Devices: how many there are, which one is current, what they can do.
 *
 * A device is created, and its address space reserved, by the first call that needs one
 * (memory, streams, events with work); if that fails, the call returns
 * orErrorInitializationError. Counting, selecting and describing devices creates none. The number
 * of devices is fixed for the life of the process (setting.h).
 */
#ifndef OPENREG_DEVICE_H
#define OPENREG_DEVICE_H

#include <openreg/error.h>

#define OPENREG_DEVICE_NAME_LENGTH 64
#define OPENREG_MAX_DEVICES 64

typedef struct orDeviceProp {
  char name[OPENREG_DEVICE_NAME_LENGTH];
  size_t totalGlobalMem; /* capacity of the device's memory */
  int major;             /* compute capability: the runtime's interface version */
  int minor;
  int multiProcessorCount; /* processors of this machine a kernel may run on */
  int physicalOrdinal;     /* its number without OPENREG_VISIBLE_DEVICES */
  int clockRate;           /* kHz; 0 if the operating system does not say */
  int warpSize;            /* 1: a kernel's thread is a CPU thread */
  size_t textureAlignment; /* alignment of every device allocation */
  int concurrentKernels;   /* 1: streams run side by side */
  int unifiedAddressing;   /* 1: a pointer tells its device */
  int integrated;          /* 1: the device shares the host's physical memory */
} orDeviceProp;

typedef void (*orDeviceFn)(int device);

OPENREG_EXTERN_C_BEGIN

/* Stores the number of visible devices; 0 is not an error.
 * Errors: orErrorInvalidSetting if a setting that it reads is bad. Never orErrorForked. */
OPENREG_API orError_t orGetDeviceCount(int* count) OPENREG_CHECKED;

/* Prepares the process for its first device, and creates none. From then on the process counts as
 * one that uses devices: children that it forks cannot use them. Functions that create a device
 * call this themselves.
 * Errors: orErrorInvalidSetting, orErrorInitializationError. */
OPENREG_API orError_t orInit(void) OPENREG_CHECKED;

/* Makes a device current for the calling thread.
 * Errors: orErrorInvalidDevice, orErrorNoDevice. */
OPENREG_API orError_t orSetDevice(int device) OPENREG_CHECKED;

/* Stores the calling thread's current device. Never orErrorForked. */
OPENREG_API orError_t orGetDevice(int* device) OPENREG_CHECKED;

/* Fills in the properties of a device. Never orErrorForked. */
OPENREG_API orError_t orGetDeviceProperties(orDeviceProp* properties, int device) OPENREG_CHECKED;

/* Stores 1 if the device has been created in this process, else 0. Never creates it, never
 * orErrorForked (a forked child gets 0). */
OPENREG_API orError_t orDeviceIsActive(int device, int* is_active) OPENREG_CHECKED;

/* Stores 1 if work that was submitted to the device is not done, else 0. Never creates the device,
 * never orErrorForked (a forked child gets 0). */
OPENREG_API orError_t orDeviceIsBusy(int device, int* is_busy) OPENREG_CHECKED;

/* Makes the library call a function for each device of the process: now for those that were created
 * before, and for each later one when it has been created. NULL: no function. A new function
 * replaces the previous one.
 * Threads: called on the thread whose call creates the device, before that call continues; no lock
 * is held. If this function and the creation of a device overlap, it may be called twice for that
 * device. */
OPENREG_API orError_t orSetDeviceCreatedFunction(orDeviceFn function) OPENREG_CHECKED;

/* Stores 1 in a child forked from a process that had used a device, else 0. Takes no lock. */
OPENREG_API orError_t orIsForkedChild(int* is_forked) OPENREG_CHECKED;

/* Stores the range of stream priorities: a lower number is a higher priority, and the
 * least value is the default. */
OPENREG_API orError_t orDeviceGetStreamPriorityRange(int* least, int* greatest) OPENREG_CHECKED;

/* Waits until all work submitted to the current device before the call is done.
 * Errors: the first asynchronous error of any of its streams; clears them all. */
OPENREG_API orError_t orDeviceSynchronize(void) OPENREG_CHECKED;

/* As orDeviceSynchronize, for the given device. A device not yet created has no work. */
OPENREG_API orError_t orDeviceSynchronizeIndex(int device) OPENREG_CHECKED;

/* As orDeviceSynchronize, for every device of the process. */
OPENREG_API orError_t orDeviceSynchronizeAll(void) OPENREG_CHECKED;

/* For the end of a program, or of a part of it that must not leave errors to the next. Waits until
 * all work submitted to all devices before the call is done, for at most `timeout_ms`, and returns
 * the first asynchronous error of any stream that was not reported yet; clears them all. Returns
 * orSuccess if there is none so far, also on timeout, and in a forked child.
 * Capture: allowed. */
OPENREG_API orError_t orDeviceTakeErrorAll(int timeout_ms) OPENREG_CHECKED;

/* Returns whether a wait is to end early: nonzero ends it. */
typedef int (*orWaitCheckFn)(void);

/* Sets a function that waits of the calling thread call every 50 ms to check whether they are to
 * end early; null, the default, for none. A wait that ends early returns orErrorNotReady: the work
 * that it waited for is not done, and continues. This applies to the functions named Synchronize,
 * and not to copies. Threads: the function is called without locks, on the waiting thread; it may
 * use the runtime. */
OPENREG_API orError_t orSetWaitCheck(orWaitCheckFn check) OPENREG_CHECKED;

/* Stores 1 if a device may copy from and to the memory of the other, else 0. Any two
 * different devices may. */
OPENREG_API orError_t orDeviceCanAccessPeer(int* can_access, int device, int peer) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
