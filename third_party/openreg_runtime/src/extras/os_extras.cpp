#include "extras/os_extras.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>

#include "base/os.h"
#include "base/read_file.h"

namespace openreg::os {
namespace {

// See proc(5): the 22nd field. 0 if the process has ended.
uint64_t parse_process_start(std::ifstream& file) {
  std::string line;
  if (!std::getline(file, line)) return 0;
  // The second field, in parentheses, is the program's name and may contain anything.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  fields.exceptions(std::ios::badbit);
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  constexpr int start_field = 22;
  for (int number = 4; number < start_field; ++number) fields >> field;
  uint64_t start = 0;
  fields >> start;
  return fields ? start : 0;
}

int protection_flags(Protection protection) {
  switch (protection) {
    case Protection::None:
      return PROT_NONE;
    case Protection::Read:
      return PROT_READ;
    default:
      return PROT_READ | PROT_WRITE;
  }
}

}  // namespace

int open_memory_file(int process, int file) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  // Opening some other kind of file might wait, or have an effect.
  constexpr char prefix[] = "/memfd:openreg-";
  char target[sizeof(prefix) - 1];
  if (readlink(path.c_str(), target, sizeof(target)) < 0) return -1;
  if (std::memcmp(target, prefix, sizeof(target)) != 0) {
    errno = ENOENT;
    return -1;
  }
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (opened < 0) return -1;
  if (has_final_size(opened)) return opened;
  close(opened);
  errno = ENOENT;
  return -1;
}

bool identify_file(int file, FileIdentity* identity) {
  struct stat status;
  if (fstat(file, &status) != 0) return false;
  *identity = {status.st_ino, static_cast<uint64_t>(status.st_size)};
  return true;
}

bool map_private_copy(void* address, size_t size, int file) {
  return mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file,
              0) != MAP_FAILED;
}

bool protect(void* address, size_t size, Protection protection) {
  return mprotect(address, size, protection_flags(protection)) == 0;
}

int process_id() { return getpid(); }

uint64_t process_start(int process) {
  return read_file("/proc/" + std::to_string(process) + "/stat", uint64_t{0}, parse_process_start);
}

bool fill_random(void* memory, size_t size) {
  return getrandom(memory, size, 0) == static_cast<ssize_t>(size);
}

void wait_for_change(const std::atomic<uint32_t>& word, uint32_t value, int64_t duration_ns) {
  const timespec duration{duration_ns / 1'000'000'000, duration_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &duration, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

}  // namespace openreg::os
