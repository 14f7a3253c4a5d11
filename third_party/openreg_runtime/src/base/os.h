// The interface to the operating system. Only os.cpp includes its headers, and two files of extras:
// os_extras.cpp and fault_signal.cpp.
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

// Whether it is a memory file that create_memory_file() has made.
bool has_final_size(int file);

void close_file(int file);

// Maps a memory file, readable and writable, over reserved addresses. A forked child inherits the
// mapping only if `is_inherited`.
bool map_memory_file(void* address, size_t size, int file, bool is_inherited = false);

// Returns whole pages of a memory file to the system; they read as zeros afterwards.
bool discard(void* address, size_t size);

// --- Process

// Registers functions to call around fork(): before it, and after it in parent and child. Null for
// none.
bool at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

// Registers a function to call when the process exits.
bool at_exit(void (*function)());

}  // namespace openreg::os
