// What only extras need of the operating system: other processes, and the protection of pages. As
// base/os.h in all else.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace openreg::os {

// --- Memory

// Opens a memory file of a process of this user, by the number it has there. Opens no other kind of
// file.
int open_memory_file(int process, int file);

// The identity of a memory file on this machine, and its size.
struct FileIdentity {
  uint64_t number;
  uint64_t size;
};

bool identify_file(int file, FileIdentity* identity);

// The same in place of the existing mapping, private to this process: its writes are not visible to
// others. Async-signal-safe.
bool map_private_copy(void* address, size_t size, int file);

enum class Protection : uint8_t { None, Read, ReadWrite };

// Sets the protection of mapped pages. Async-signal-safe.
bool protect(void* address, size_t size, Protection protection);

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

}  // namespace openreg::os
