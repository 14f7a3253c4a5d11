// The interface to the operating system. Only os.cpp includes its headers.
//
// Unless a function says otherwise: any thread may call it, sizes are bytes, and a function that
// can fail returns false, null or -1; error_text() then describes the cause.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace openreg::os {

// "<call>: <the cause of this thread's last failed call>".
std::string error_text(const char* call);

// --- Time and threads

// The one clock of the library: monotonic, in nanoseconds.
int64_t now_ns();

// The operating system's number of the calling thread.
int thread_id();

// Names the calling thread for debuggers; cut to 15 characters.
void set_thread_name(const std::string& name);

// Leaves signals sent to the process to the threads of the program. Faults of the calling
// thread still arrive.
void block_process_signals();

// Yields the processor once.
void yield();

// Blocks the calling thread for about that long.
void sleep_ns(int64_t duration_ns);

// As the duration of a sleep: no limit.
constexpr int64_t no_time_limit = -1;

// Sleeps while the word, in private memory, has the value, for at most `duration_ns`; may end
// early. Returns false if the time has passed.
bool sleep_while(const std::atomic<uint32_t>& word, uint32_t value, int64_t duration_ns);

// Wakes a thread that sleeps on the word, if there is one. Only the address is used: the word may
// no longer exist.
void wake_sleeper(const std::atomic<uint32_t>* word);

// Blocks the calling thread for the rest of the process's life.
[[noreturn]] void park();

// One iteration of a loop that waits for another thread's store.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// --- Machine

// The unit of cache coherence. A constant, because the layout of objects depends on it.
constexpr size_t cache_line_size = 64;

size_t page_size();

// Memory this process may use: the machine's, or its control group's if that is less.
uint64_t physical_memory();

// Processors this process may run on.
int processor_count();

// The processor's model name, "" if unknown.
std::string processor_name();

// The processor's highest clock rate in kHz, 0 if unknown.
int processor_clock_khz();

// --- Memory

// Reserves addresses that cannot be accessed. Uses no memory.
void* reserve_addresses(size_t size);

// Maps fresh, zeroed, private memory; pages are taken when first touched.
void* map_memory(size_t size);

void unmap(void* address, size_t size);

// Creates an unnamed file that lives in memory and reads as zeros. Returns its descriptor. The size
// is final, and no other user may open the file.
int create_memory_file(const char* name, size_t size);

// Opens a memory file of a process of this user, by the number it has there. Opens no other kind of
// file.
int open_memory_file(int process, int file);

// The identity of a memory file on this machine, and its size.
struct FileIdentity {
  uint64_t number;
  uint64_t size;
};

bool identify_file(int file, FileIdentity* identity);

void close_file(int file);

// Maps a memory file, readable and writable, over reserved addresses. A forked child inherits the
// mapping only if `is_inherited`.
bool map_memory_file(void* address, size_t size, int file, bool is_inherited = false);

// The same in place of the existing mapping, private to this process: its writes are not visible to
// others. Async-signal-safe.
bool map_private_copy(void* address, size_t size, int file);

enum class Protection : uint8_t { None, Read, ReadWrite };

// Sets the protection of mapped pages. Async-signal-safe.
bool protect(void* address, size_t size, Protection protection);

// Returns whole pages of a memory file to the system; they read as zeros afterwards.
bool discard(void* address, size_t size);

// --- Other processes

// The number of this process.
int process_id();

// When a process started, in a unit of the operating system's. Together with its number it
// identifies a process while the machine is up. 0 if there is no such process, or if it is a
// zombie.
uint64_t process_start(int process);

// Fills memory with unpredictable numbers.
bool fill_random(void* memory, size_t size);

// Waits while the word has the value, for at most `duration_ns`; may end early. The word may be in
// memory that is shared between processes.
void wait_for_change(const std::atomic<uint32_t>& word, uint32_t value, int64_t duration_ns);

// Ends all waits for the word to change.
void wake_all(const std::atomic<uint32_t>& word);

// --- Process

// Registers functions to call around fork(): before it, and after it in parent and child. Null for
// none.
bool at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

// Registers a function to call when the process exits.
bool at_exit(void (*function)());

enum class FaultAccess : uint8_t { Read, Write, Unknown };

struct Fault {
  uintptr_t address;
  FaultAccess access;
};

// Called for a memory fault. Returns whether the access can be retried. Must be async-signal-safe.
using FaultObserver = bool (*)(const Fault& fault);

// Installs the observer for all memory faults, before other handlers. Faults that it does not
// resolve are passed to the other handlers, the latest first. Must not be called concurrently;
// cheap if nothing has changed.
bool observe_faults(FaultObserver observer);

// Writes to the standard error stream. Async-signal-safe.
void write_error(const char* text, size_t size);

}  // namespace openreg::os
