/* Settings: environment variables, read once, at the first call that needs one.
 *
 * Note [Settings table]
 * This table is the only list: the parser, the error texts and the documentation are made
 * from it. The runtime reads and checks all settings, so that a bad value fails at the same time
 * and with the same text, whichever layer uses the setting. The runtime itself does not use the
 * last rows: the layers above read their texts with orGetSetting.
 *
 * Note [CUDA's variables]
 * With OPENREG_DEVICE_TYPE=cuda, CUDA_VISIBLE_DEVICES and CUDA_LAUNCH_BLOCKING stand in for the
 * settings of these names that are not set, and mean what they mean to CUDA: the list of devices
 * ends before the first that does not exist, and is empty if one comes twice; any value but 1 does
 * not block. They are never an error.
 */
#ifndef OPENREG_SETTING_H
#define OPENREG_SETTING_H

#include <openreg/error.h>
#include <stddef.h>

/* X(variable, default as text, allowed values, what it does) */
#define OPENREG_SETTINGS(X)                                                              \
  X(OPENREG_DEVICE_COUNT, "2", "an integer from 0 to 64", "Number of devices.")          \
  X(OPENREG_DEVICE_MEMORY, "a quarter of the machine's memory",                          \
    "a size of at least 16MiB, such as 512MiB, 4GiB or a number of bytes",               \
    "Capacity of each device.")                                                          \
  X(OPENREG_VISIBLE_DEVICES, "all devices",                                              \
    "different device numbers below OPENREG_DEVICE_COUNT, separated by commas",          \
    "Which devices the process sees, in which order. Empty: none.")                      \
  X(OPENREG_MEMORY_PROTECTION, "1", "0 or 1",                                            \
    "1: the host faults on device memory. 0: it may read and write it, for debuggers.")  \
  X(OPENREG_LAUNCH_BLOCKING, "0", "0 or 1",                                              \
    "1: every launch waits until its work is done and returns its error.")               \
  X(OPENREG_SCHEDULE, "free", "free, lazy, eager or a seed, an integer from 0",          \
    "Which of the streams that could run gets on next; free: each runs when it can.")    \
  X(OPENREG_QUEUE_MEMORY, "64MiB", "a size, such as 64MiB; 0: no limit",                 \
    "Memory of what waits in a stream's queue, beyond which a submission waits.")        \
  X(OPENREG_DEVICE_TYPE, "openreg", "openreg, cuda or none",                             \
    "The device type that the PyTorch backend serves. Read when its library is loaded.") \
  X(OPENREG_CUDA_CAPABILITY, "8.0", "a major and a minor version, such as 9.0",          \
    "The compute capability that devices have with OPENREG_DEVICE_TYPE=cuda.")           \
  X(OPENREG_CUDA_VERSION, "none", "none, or a major and a minor version, such as 12.8",  \
    "What torch.version.cuda is with OPENREG_DEVICE_TYPE=cuda. Read by import torch.")   \
  X(OPENREG_CUDA_NOTICE, "1", "0 or 1",                                                  \
    "1: with OPENREG_DEVICE_TYPE=cuda, the first use says so, in one line on stderr.")   \
  X(OPENREG_FALLBACK, "silent", "silent, warn or error",                                 \
    "What the PyTorch backend's fallback does when a call makes the host wait.")         \
  X(OPENREG_FALLBACK_VERIFY, "0", "0 or 1",                                              \
    "1: each planned call of the fallback is compared with the functional result.")      \
  X(OPENREG_MEMORY_POISON, "0", "0 or 1",                                                \
    "1: unused memory is filled with a pattern, and allocations are guarded.")           \
  X(OPENREG_MEMORY_QUARANTINE, "256MiB", "a size, such as 64MiB; 0: none",               \
    "With OPENREG_MEMORY_POISON=1, how much freed memory is not reused yet.")            \
  X(OPENREG_OCCL_ON_ERROR, "raise", "raise or abort",                                    \
    "What a distributed operation that fails does. abort: it ends the process.")         \
  X(OPENREG_SANITIZER, "0", "0, 1, raise or collect",                                    \
    "1: finds work that streams do not order, and warns. raise, collect: does that.")    \
  X(OPENREG_SANITIZER_EXIT, "1", "0 or 1",                                               \
    "1: with findings that were not cleared, the process ends with status 77.")          \
  X(OPENREG_SANITIZER_HOST, "1", "0, 1 or operators",                                    \
    "1: finds all accesses of the host. operators: those of operators. 0: none.")        \
  X(OPENREG_SANITIZER_REPORT, "none", "the name of a file",                              \
    "Where the sanitizer writes its findings when the process ends, as JSON.")           \
  X(OPENREG_SANITIZER_SUPPRESSIONS, "none", "the name of a file",                        \
    "Findings not to report: a line for each, kind:file:operator.")                      \
  X(OPENREG_SANITIZER_UNINITIALIZED, "0", "0 or 1",                                      \
    "1: the sanitizer also finds kernels that read uninitialized memory.")

/* Where a setting stands in the table, such as orSettingIndex_OPENREG_DEVICE_COUNT. */
#define OPENREG_SETTING_INDEX(variable, default_text, allowed, description) \
  orSettingIndex_##variable,
typedef enum orSettingIndex {
  OPENREG_SETTINGS(OPENREG_SETTING_INDEX) orSettingIndexCount
} orSettingIndex;
#undef OPENREG_SETTING_INDEX

typedef struct orSetting {
  const char* variable;
  const char* default_text;
  const char* allowed;
  const char* description;
  const char* value;  /* the environment's text when it was read, NULL if unset */
  const char* source; /* the environment variable that it is from, NULL if unset */
} orSetting;

/* Takes the text of one bad value: the words of orErrorInvalidSetting. */
typedef void (*orBadSettingFn)(void* user_data, const char* text);

OPENREG_EXTERN_C_BEGIN

/* Stores the value of a setting that is a size with a default that is one, in bytes.
 * Errors: orErrorInvalidValue for another setting, or a bad value. */
OPENREG_API orError_t orGetSettingSize(size_t* size, int index) OPENREG_CHECKED;

/* Stores how many settings there are. */
OPENREG_API orError_t orGetSettingCount(int* count) OPENREG_CHECKED;

/* Describes one setting, 0 <= index < count, which an orSettingIndex names. The texts live as long
 * as the process. Returns even a bad value as it was read; orCheckSettings finds it. */
OPENREG_API orError_t orGetSetting(orSetting* setting, int index) OPENREG_CHECKED;

/* Reads and checks all settings now.
 * Errors: orErrorInvalidSetting; orGetLastErrorMessage names the variable, its value and
 * what is allowed. The same error comes from every later call that needs a setting. */
OPENREG_API orError_t orCheckSettings(void) OPENREG_CHECKED;

/* Stores 1 if a call has needed a setting, so that all have been read, else 0. Reads none. */
OPENREG_API orError_t orAreSettingsRead(int* are_read) OPENREG_CHECKED;

/* Checks what the environment says now. Stores how many devices a process that reads it sees, 0
 * with a bad value, and calls a function for each bad value, in the order of the table, on the
 * calling thread. Keeps nothing: if no call has needed a setting yet, the first one that does still
 * reads the environment. Threads: the environment must not change meanwhile. */
OPENREG_API orError_t orReviewSettings(int* device_count, orBadSettingFn report,
                                       void* user_data) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
