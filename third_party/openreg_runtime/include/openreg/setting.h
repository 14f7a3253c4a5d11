/* Settings: environment variables, read once, at the first call that needs one.
 *
 * Note [Settings table]
 * OPENREG_SETTINGS has the settings that the runtime uses. Layers above it declare theirs with
 * orDeclareSetting when they are loaded. The runtime reads and checks all of them together, so that
 * an invalid value fails at the same time and with the same text, whichever layer uses the setting.
 * The table and the declarations are the only lists: the error texts and the documentation are made
 * from them.
 */
#ifndef OPENREG_SETTING_H
#define OPENREG_SETTING_H

#include <openreg/error.h>
#include <stddef.h>

/* X(variable, default as text, values, the same for people or NULL, what it does), as for
 * orDeclareSetting. A default that is none of the values is computed. */
#define OPENREG_SETTINGS(X)                                                                    \
  X(OPENREG_DEVICE_COUNT, "2", "<number:64>", "an integer from 0 to 64", "Number of devices.") \
  X(OPENREG_DEVICE_MEMORY, "a quarter of the machine's memory", "<size:16MiB>",                \
    "a size of at least 16MiB, such as 512MiB, 4GiB or a number of bytes",                     \
    "Capacity of each device.")                                                                \
  X(OPENREG_VISIBLE_DEVICES, "all devices", "<devices>",                                       \
    "different device numbers below OPENREG_DEVICE_COUNT, separated by commas",                \
    "Which devices the process sees, in which order. Empty: none.")                            \
  X(OPENREG_MEMORY_PROTECTION, "1", "0 1", NULL,                                               \
    "1: the host faults on device memory. 0: it may read and write it, for debuggers.")        \
  X(OPENREG_LAUNCH_BLOCKING, "0", "0 1", NULL,                                                 \
    "1: every launch waits until its work is done and returns its error.")                     \
  X(OPENREG_SCHEDULE, "free", "free lazy eager <number>",                                      \
    "free, lazy, eager or a seed, an integer from 0",                                          \
    "Which of the streams that are ready runs next; free: each runs when it is ready.")        \
  X(OPENREG_QUEUE_MEMORY, "64MiB", "<size>", "a size, such as 64MiB; 0: no limit",             \
    "Memory of what waits in a stream's queue, beyond which a submission waits.")

/* Where a setting stands in the table, such as orSettingIndex_OPENREG_DEVICE_COUNT. */
#define OPENREG_SETTING_INDEX(variable, default_text, values, allowed, description) \
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

/* Returns what a setting is whose variable is not set, and stores the variable that this is from;
 * null if nothing else says. `device_count` is OPENREG_DEVICE_COUNT. The text lives until the
 * thread's next call of the function. It must not call the runtime. */
typedef const char* (*orSettingSourceFn)(const char* variable, int device_count,
                                         const char** source);

OPENREG_EXTERN_C_BEGIN

/* Declares a setting of a layer above the runtime and stores its index, from orSettingIndexCount
 * on. The value and the source in `setting` are not used. `values` has the values that are valid,
 * separated by spaces: words, and kinds of values:
 *   <size>     a number of bytes or a size such as 64MiB; <size:16MiB>: of at least 16MiB
 *   <number>   an integer from 0; <number:64>: of at most 64
 *   <devices>  different numbers below OPENREG_DEVICE_COUNT, separated by commas, or nothing
 *   <version>  two numbers with a point between them, such as 12.8
 *   <text>     any text but the empty one
 * If all are words, `allowed` may be null: the runtime makes it of them. A declaration may be
 * repeated. A setting that is declared after the settings have been read is read by this call.
 * Owns: the texts must live as long as the process.
 * Errors: orErrorInvalidValue if another text is null, `allowed` is null and not all are words, the
 * default is not valid, or another setting has the name. */
OPENREG_API orError_t orDeclareSetting(int* index, const orSetting* setting,
                                       const char* values) OPENREG_CHECKED;

/* Sets a function that is asked for settings whose variable is not set; NULL for none. It has no
 * effect on settings that have been read. */
OPENREG_API orError_t orSetSettingSource(orSettingSourceFn function) OPENREG_CHECKED;

/* Stores the value of a setting that is a size with a default that is one, in bytes.
 * Errors: orErrorInvalidValue for another setting, or a bad value. */
OPENREG_API orError_t orGetSettingSize(size_t* size, int index) OPENREG_CHECKED;

/* Stores how many settings there are. */
OPENREG_API orError_t orGetSettingCount(int* count) OPENREG_CHECKED;

/* Stores the variable of one setting, 0 <= index < count. Reads none. */
OPENREG_API orError_t orGetSettingName(const char** variable, int index) OPENREG_CHECKED;

/* Describes one setting, 0 <= index < count; an orSettingIndex names those of the runtime. The
 * texts live as long as the process. Returns even a bad value as it was read; orCheckSettings finds
 * it. */
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
