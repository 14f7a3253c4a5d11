/* Interprocess communication: device memory and events used by several processes.
 *
 * To share, a process makes a handle: plain bytes, to be sent to another process by any means. The
 * other process opens the handle and uses the same memory, not a copy, at an address of its own,
 * or waits for the same event. Both processes run as the same user on the same machine, in one
 * namespace of process ids; nothing appears in a file system.
 *
 * Note [Ledger]
 * A process that shares has another memory file, its ledger: it contains the positions of the
 * arenas, the progress of events, and the holders of leases. A process that opens a handle maps the
 * other's ledger and arena once each, and unmaps them when the last object opened from them is
 * closed.
 * Handles name the ledger by process, start time and a random key, so a handle of a process that
 * has ended is recognized even if another process has its number now.
 *
 * Note [Leases]
 * The owner of shared memory must not free it while other processes use it. Leases record this use:
 * the owner grants one for each handle it sends; the receiver takes it, once, and ends it when it
 * no longer uses the memory. A lease whose holder dies ends by itself. Mapped memory stays readable
 * and writable after its owner has ended.
 *
 * Unless a function says otherwise: any bytes are a valid handle, and a handle that is damaged, of
 * another kind, or names something that no longer exists is orErrorInvalidResourceHandle; if its
 * process has ended and nothing of it is mapped here, orErrorProcessEnded.
 */
#ifndef OPENREG_IPC_H
#define OPENREG_IPC_H

#include <openreg/error.h>

#define OPENREG_IPC_HANDLE_SIZE 64

typedef struct orIpcMemHandle {
  char reserved[OPENREG_IPC_HANDLE_SIZE];
} orIpcMemHandle_t;

typedef struct orIpcEventHandle {
  char reserved[OPENREG_IPC_HANDLE_SIZE];
} orIpcEventHandle_t;

typedef struct orIpcLeaseHandle {
  char reserved[OPENREG_IPC_HANDLE_SIZE];
} orIpcLeaseHandle_t;

/* A lease that this process holds. */
typedef struct orIpcLease* orIpcLease_t;

typedef void (*orIpcLeaseFn)(unsigned long long lease, void* user_data);

OPENREG_EXTERN_C_BEGIN

/* Stores a handle for the allocation that a device pointer lies in. The allocation must live until
 * no other process uses it; see Note [Leases].
 * Errors: orErrorInvalidValue if the pointer lies in no allocation of this process,
 * orErrorNotPermitted if it lies in memory that another process shares. */
OPENREG_API orError_t orIpcGetMemHandle(orIpcMemHandle_t* handle, void* pointer) OPENREG_CHECKED;

/* Opens an allocation of another process and stores its address in this one. The memory belongs to
 * the device with the same number as in the other process. Opening it again gives the same address.
 * Owns: each address opened is closed with orIpcCloseMemHandle.
 * Errors: orErrorNotPermitted for a handle that this process made; orErrorInvalidDevice if there is
 * no such device here; orErrorNotSupported if the other process's devices have more memory than all
 * of this one's; orErrorInvalidValue unless flags is 0. */
OPENREG_API orError_t orIpcOpenMemHandle(void** pointer, orIpcMemHandle_t handle,
                                         unsigned flags) OPENREG_CHECKED;

/* Closes what orIpcOpenMemHandle opened. Does not wait: the caller orders it after the work that
 * uses the memory. The addresses become invalid with the last close.
 * Errors: orErrorInvalidValue if the pointer is not the start of an opened allocation. */
OPENREG_API orError_t orIpcCloseMemHandle(void* pointer) OPENREG_CHECKED;

/* Stores a handle for an event created with orEventInterprocess. Destroying the event makes the
 * handle invalid; waits that others have begun still end.
 * Errors: orErrorInvalidResourceHandle for an event without the flag, orErrorNotPermitted for one
 * that another process shares. */
OPENREG_API orError_t orIpcGetEventHandle(orIpcEventHandle_t* handle,
                                          orEvent_t event) OPENREG_CHECKED;

/* Opens the event of another process. It can be recorded, queried, waited for and destroyed; each
 * process sees the latest record, whichever made it. If a process ends before a record that it made
 * completes, waits for that end with orErrorProcessEnded; if its stream had failed, with
 * orErrorLaunchFailure.
 * Errors: orErrorNotPermitted for a handle that this process made. */
OPENREG_API orError_t orIpcOpenEventHandle(orEvent_t* event,
                                           orIpcEventHandle_t handle) OPENREG_CHECKED;

/* Grants a lease: stores its number, which is never 0, and the handle to send.
 * Errors: orErrorMemoryAllocation if too many leases are granted already. */
OPENREG_API orError_t orIpcLeaseGrant(unsigned long long* lease,
                                      orIpcLeaseHandle_t* handle) OPENREG_CHECKED;

/* Stores the number of the lease if this process granted it, else 0. */
OPENREG_API orError_t orIpcLeaseFind(unsigned long long* lease,
                                     orIpcLeaseHandle_t handle) OPENREG_CHECKED;

/* Revokes a lease that has not been taken.
 * Errors: orErrorInvalidValue if there is no such lease, orErrorNotPermitted if it was taken. */
OPENREG_API orError_t orIpcLeaseRevoke(unsigned long long lease) OPENREG_CHECKED;

/* Takes a lease that another process granted.
 * Errors: orErrorNotPermitted for one that this process granted; orErrorInvalidResourceHandle if it
 * was taken before, or revoked. */
OPENREG_API orError_t orIpcLeaseTake(orIpcLease_t* lease,
                                     orIpcLeaseHandle_t handle) OPENREG_CHECKED;

/* Ends a lease. Does not wait. Null is allowed. In a forked child it does nothing. */
OPENREG_API orError_t orIpcLeaseEnd(orIpcLease_t lease) OPENREG_CHECKED;

/* Calls the function for each lease of this process that has ended since the last call, and forgets
 * the lease. No lock is held during the calls. If `checks_holders` is not 0, it checks whether each
 * holder is still alive, which takes time; otherwise it uses only the holders' reports. */
OPENREG_API orError_t orIpcLeaseCollect(orIpcLeaseFn ended, void* user_data,
                                        int checks_holders) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
