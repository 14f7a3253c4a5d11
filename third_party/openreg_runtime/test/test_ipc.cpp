#include <signal.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>

#include "check.h"

using test::Gate;
using test::launch;
using test::make_stream;

namespace {

constexpr size_t memory_size = 10'000;

// A connection to another process, for plain bytes and for saying "now you".
class Channel {
 public:
  Channel(int in, int out) : in_(in), out_(out) {}

  template <typename T>
  void send(const T& value) {
    CHECK_EQUAL(write(out_, &value, sizeof(value)), ssize_t(sizeof(value)));
  }

  template <typename T>
  T receive() {
    T value{};
    CHECK_EQUAL(read(in_, &value, sizeof(value)), ssize_t(sizeof(value)));
    return value;
  }

  void signal() { send('!'); }
  void wait() { CHECK_EQUAL(receive<char>(), '!'); }

 private:
  int in_;
  int out_;
};

struct Process {
  pid_t id;
  Channel channel;

  void check_success() const {
    int status = -1;
    CHECK_EQUAL(waitpid(id, &status, 0), id);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }

  void kill() const {
    CHECK_EQUAL(::kill(id, SIGKILL), 0);
    int status = -1;
    CHECK_EQUAL(waitpid(id, &status, 0), id);
  }
};

// Starts a process that runs the function. Must come before this process uses a device.
Process start(void (*body)(Channel&)) {
  int to_child[2];
  int to_parent[2];
  CHECK_EQUAL(pipe(to_child), 0);
  CHECK_EQUAL(pipe(to_parent), 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    close(to_child[1]);
    close(to_parent[0]);
    Channel channel(to_child[0], to_parent[1]);
    body(channel);
    std::exit(0);
  }
  close(to_child[0]);
  close(to_parent[1]);
  return {child, Channel(to_parent[0], to_child[1])};
}

void fill(char* memory, int value, size_t size = memory_size) {
  CHECK_OK(orMemset(memory, value, size));
}

void check_content(const char* memory, char value, size_t size = memory_size) {
  const std::string host(size, 0);
  CHECK_OK(orMemcpy(const_cast<char*>(host.data()), memory, size, orMemcpyDeviceToHost));
  CHECK(host == std::string(size, value));
}

orIpcMemHandle_t share(char* memory) {
  orIpcMemHandle_t handle;
  CHECK_OK(orIpcGetMemHandle(&handle, memory));
  return handle;
}

char* open_memory(const orIpcMemHandle_t& handle) {
  void* memory = nullptr;
  CHECK_OK(orIpcOpenMemHandle(&memory, handle, 0));
  return static_cast<char*>(memory);
}

// Keeps events until the process ends, as they may be in use by then.
orEvent_t kept(orEvent_t event) {
  static auto* events = new std::vector<orEvent_t>;
  events->push_back(event);
  return event;
}

orEvent_t make_shared_event() {
  orEvent_t event = nullptr;
  CHECK_OK(orEventCreateWithFlags(&event, orEventInterprocess | orEventDisableTiming));
  return kept(event);
}

orIpcEventHandle_t share(orEvent_t event) {
  orIpcEventHandle_t handle;
  CHECK_OK(orIpcGetEventHandle(&handle, event));
  return handle;
}

orEvent_t open_event(const orIpcEventHandle_t& handle) {
  orEvent_t event = nullptr;
  CHECK_OK(orIpcOpenEventHandle(&event, handle));
  return kept(event);
}

struct Grant {
  unsigned long long number;
  orIpcLeaseHandle_t handle;
};

Grant grant() {
  Grant granted{};
  CHECK_OK(orIpcLeaseGrant(&granted.number, &granted.handle));
  CHECK(granted.number != 0);
  return granted;
}

std::vector<unsigned long long> collect(bool checks_holders) {
  std::vector<unsigned long long> ended;
  CHECK_OK(orIpcLeaseCollect(
      [](unsigned long long lease, void* ended) {
        static_cast<std::vector<unsigned long long>*>(ended)->push_back(lease);
      },
      &ended, checks_holders ? 1 : 0));
  return ended;
}

size_t count_mappings() {
  std::ifstream file("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.find("memfd:openreg") != std::string::npos) ++count;
  }
  return count;
}

// The process that shares in most tests: it sends a handle of memory filled with 1, waits, checks
// that the memory holds 2 and fills it with 3.
void share_memory(Channel& channel) {
  CHECK_OK(orSetDevice(1));
  test::device_malloc(memory_size);  // the next one does not start at the arena's beginning
  char* memory = test::device_malloc(memory_size);
  fill(memory, 1);
  channel.send(share(memory + 100));
  channel.wait();
  check_content(memory, 2);
  fill(memory, 3);
  channel.signal();
  channel.wait();
}

void exit_after_sharing(Channel& channel) {
  char* memory = test::device_malloc(memory_size);
  fill(memory, 1);
  channel.send(share(memory));
  channel.send(grant().handle);
  channel.send(share(make_shared_event()));
  channel.wait();
}

}  // namespace

TEST(memory_is_shared_in_both_directions) {
  Process producer = start(share_memory);
  const auto handle = producer.channel.receive<orIpcMemHandle_t>();
  char* memory = open_memory(handle);
  check_content(memory, 1);
  fill(memory, 2);
  producer.channel.signal();
  producer.channel.wait();
  check_content(memory, 3);
  CHECK_OK(orIpcCloseMemHandle(memory));
  producer.channel.signal();
  producer.check_success();
}

TEST(shared_memory_is_memory_of_the_device_with_the_same_number) {
  Process producer = start(share_memory);
  const auto handle = producer.channel.receive<orIpcMemHandle_t>();
  char* memory = open_memory(handle);
  orPointerAttributes attributes;
  CHECK_OK(orPointerGetAttributes(&attributes, memory + 500));
  CHECK_EQUAL(attributes.type, orMemoryTypeDevice);
  CHECK_EQUAL(attributes.device, 1);
  CHECK(attributes.allocationBase == memory);
  CHECK_EQUAL(attributes.allocationSize, memory_size);
  CHECK_ERROR(orMemset(memory + 500, 0, memory_size), orErrorInvalidValue);
  CHECK_ERROR(orMemset(memory + 2 * memory_size, 0, 1), orErrorIllegalAddress);
  CHECK_ERROR(orMemset(test::kernel_address(memory), 0, 1), orErrorInvalidValue);
  CHECK_ERROR(orFree(memory), orErrorInvalidValue);
  fill(memory, 2);
  CHECK_OK(launch(nullptr, "read", [memory] {
    return *test::kernel_address(memory) == 2 ? orSuccess : orErrorUnknown;
  }));
  CHECK_OK(orStreamSynchronize(nullptr));
  producer.channel.signal();
  producer.channel.wait();
  producer.channel.signal();
  producer.check_success();
}

TEST(an_allocation_is_unmapped_with_its_last_close) {
  Process producer = start(exit_after_sharing);
  const auto handle = producer.channel.receive<orIpcMemHandle_t>();
  CHECK_OK(orStreamSynchronize(nullptr));  // creates the device
  fill(test::device_malloc(1), 0, 1);
  const size_t before = count_mappings();
  char* memory = open_memory(handle);
  CHECK(count_mappings() > before);
  CHECK(open_memory(handle) == memory);
  CHECK_OK(orIpcCloseMemHandle(memory));
  check_content(memory, 1);
  CHECK_OK(orIpcCloseMemHandle(memory));
  CHECK_EQUAL(count_mappings(), before);
  CHECK_ERROR(orIpcCloseMemHandle(memory), orErrorInvalidValue);
  CHECK_ERROR(orIpcCloseMemHandle(nullptr), orErrorInvalidValue);
  producer.channel.signal();
  producer.check_success();
}

TEST(mapped_memory_outlives_its_process_and_handles_do_not) {
  Process producer = start(exit_after_sharing);
  const auto memory_handle = producer.channel.receive<orIpcMemHandle_t>();
  const auto lease_handle = producer.channel.receive<orIpcLeaseHandle_t>();
  const auto event_handle = producer.channel.receive<orIpcEventHandle_t>();
  char* memory = open_memory(memory_handle);
  producer.channel.signal();
  producer.check_success();
  check_content(memory, 1);
  fill(memory, 4);
  CHECK(open_memory(memory_handle) == memory);
  CHECK_OK(orIpcCloseMemHandle(memory));
  check_content(memory, 4);
  CHECK_OK(orIpcCloseMemHandle(memory));

  void* pointer = nullptr;
  orIpcLease_t lease = nullptr;
  orEvent_t event = nullptr;
  CHECK_ERROR(orIpcOpenMemHandle(&pointer, memory_handle, 0), orErrorProcessEnded);
  CHECK_CONTAINS(orGetLastErrorMessage(), "process " + std::to_string(producer.id));
  CHECK_ERROR(orIpcLeaseTake(&lease, lease_handle), orErrorProcessEnded);
  CHECK_ERROR(orIpcOpenEventHandle(&event, event_handle), orErrorProcessEnded);
}

TEST(an_owner_does_not_open_its_own_handles) {
  char* memory = test::device_malloc(memory_size);
  void* pointer = nullptr;
  orIpcLease_t lease = nullptr;
  orEvent_t event = nullptr;
  CHECK_ERROR(orIpcOpenMemHandle(&pointer, share(memory), 0), orErrorNotPermitted);
  CHECK_ERROR(orIpcLeaseTake(&lease, grant().handle), orErrorNotPermitted);
  CHECK_ERROR(orIpcOpenEventHandle(&event, share(make_shared_event())), orErrorNotPermitted);
}

TEST(what_was_received_is_not_shared_on) {
  Process producer = start(exit_after_sharing);
  char* memory = open_memory(producer.channel.receive<orIpcMemHandle_t>());
  producer.channel.receive<orIpcLeaseHandle_t>();
  orEvent_t event = open_event(producer.channel.receive<orIpcEventHandle_t>());
  orIpcMemHandle_t memory_handle;
  orIpcEventHandle_t event_handle;
  CHECK_ERROR(orIpcGetMemHandle(&memory_handle, memory), orErrorNotPermitted);
  CHECK_CONTAINS(orGetLastErrorMessage(), "received from another process");
  CHECK_ERROR(orIpcGetEventHandle(&event_handle, event), orErrorNotPermitted);
  CHECK_CONTAINS(orGetLastErrorMessage(), "received from another process");
  CHECK_OK(orEventDestroy(event));
  producer.channel.signal();
  producer.check_success();
}

TEST(what_is_no_device_memory_is_not_shared) {
  int on_stack = 0;
  orIpcMemHandle_t handle;
  CHECK_ERROR(orIpcGetMemHandle(&handle, &on_stack), orErrorInvalidValue);
  CHECK_ERROR(orIpcGetMemHandle(&handle, test::host_malloc(10)), orErrorInvalidValue);
  CHECK_ERROR(orIpcGetMemHandle(&handle, nullptr), orErrorInvalidValue);
  orIpcEventHandle_t event_handle;
  CHECK_ERROR(orIpcGetEventHandle(&event_handle, kept(test::make_event())),
              orErrorInvalidResourceHandle);
  orEvent_t event = nullptr;
  CHECK_ERROR(orEventCreateWithFlags(&event, orEventInterprocess), orErrorInvalidValue);
}

TEST(damaged_handles_are_recognized) {
  Process producer = start(exit_after_sharing);
  const auto memory_handle = producer.channel.receive<orIpcMemHandle_t>();
  const auto lease_handle = producer.channel.receive<orIpcLeaseHandle_t>();
  const auto event_handle = producer.channel.receive<orIpcEventHandle_t>();
  for (size_t i = 0; i < OPENREG_IPC_HANDLE_SIZE; ++i) {
    for (const char flip : {1, 127}) {
      auto memory = memory_handle;
      auto lease = lease_handle;
      auto event = event_handle;
      memory.reserved[i] ^= flip;
      lease.reserved[i] ^= flip;
      event.reserved[i] ^= flip;
      void* pointer = nullptr;
      orIpcLease_t taken = nullptr;
      orEvent_t opened = nullptr;
      unsigned long long number = 0;
      CHECK_ERROR(orIpcOpenMemHandle(&pointer, memory, 0), orErrorInvalidResourceHandle);
      CHECK_ERROR(orIpcLeaseTake(&taken, lease), orErrorInvalidResourceHandle);
      CHECK_ERROR(orIpcLeaseFind(&number, lease), orErrorInvalidResourceHandle);
      CHECK_ERROR(orIpcOpenEventHandle(&opened, event), orErrorInvalidResourceHandle);
    }
  }
  orIpcMemHandle_t other_kind;
  std::memcpy(&other_kind, &lease_handle, sizeof(other_kind));
  void* pointer = nullptr;
  CHECK_ERROR(orIpcOpenMemHandle(&pointer, other_kind, 0), orErrorInvalidResourceHandle);
  CHECK_ERROR(orIpcOpenMemHandle(&pointer, memory_handle, 1), orErrorInvalidValue);
  CHECK_OK(orIpcOpenMemHandle(&pointer, memory_handle, 0));
  producer.channel.signal();
  producer.check_success();
}

namespace {

// A forged handle: some bytes are changed, and the checksum is computed again.
template <typename Handle>
Handle forge(Handle handle, size_t offset, uint64_t value, size_t size) {
  constexpr size_t checksum_offset = 36;
  std::memcpy(handle.reserved + offset, &value, size);
  std::memset(handle.reserved + checksum_offset, 0, sizeof(uint32_t));
  uint32_t hash = 2166136261u;
  for (const char byte : handle.reserved) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 16777619u;
  }
  std::memcpy(handle.reserved + checksum_offset, &hash, sizeof(hash));
  return handle;
}

}  // namespace

TEST(forged_handles_open_nothing) {
  Process producer = start(exit_after_sharing);
  const auto memory = producer.channel.receive<orIpcMemHandle_t>();
  const auto lease = producer.channel.receive<orIpcLeaseHandle_t>();
  const auto event = producer.channel.receive<orIpcEventHandle_t>();
  const auto open_forged = [&](size_t offset, uint64_t value, size_t size) {
    void* pointer = nullptr;
    return orIpcOpenMemHandle(&pointer, forge(memory, offset, value, size), 0);
  };
  // Process, its file, its start, its key; then device, offset and size in the arena.
  CHECK(open_forged(0, uint64_t(getpid()), 4) != orSuccess);
  CHECK_ERROR(open_forged(0, 0x7fffffff, 4), orErrorProcessEnded);
  int true_file = -1;
  std::memcpy(&true_file, memory.reserved + 4, sizeof(true_file));
  for (int file = 0; file < 16; ++file) {
    CHECK_EQUAL(open_forged(4, uint64_t(file), 4) == orSuccess, file == true_file);
  }
  CHECK_ERROR(open_forged(4, 1000, 4), orErrorOperatingSystem);
  CHECK_ERROR(open_forged(8, 1, 8), orErrorProcessEnded);
  CHECK_ERROR(open_forged(16, 1, 8), orErrorInvalidResourceHandle);
  CHECK_ERROR(open_forged(34, 1, 2), orErrorInvalidResourceHandle);  // not shared
  CHECK_ERROR(open_forged(34, 64, 2), orErrorInvalidResourceHandle);
  CHECK_ERROR(open_forged(40, UINT64_MAX, 8), orErrorInvalidResourceHandle);
  CHECK_ERROR(open_forged(48, UINT64_MAX, 8), orErrorInvalidResourceHandle);
  CHECK_ERROR(open_forged(48, 0, 8), orErrorInvalidResourceHandle);
  orIpcLease_t taken = nullptr;
  orEvent_t opened = nullptr;
  for (const uint64_t slot : {uint64_t{0}, uint64_t{5}, uint64_t{1} << 40, UINT64_MAX}) {
    CHECK_ERROR(orIpcLeaseTake(&taken, forge(lease, 40, slot, 8)), orErrorInvalidResourceHandle);
  }
  for (const uint64_t slot : {uint64_t{7}, uint64_t{1} << 40, UINT64_MAX}) {
    CHECK_ERROR(orIpcOpenEventHandle(&opened, forge(event, 40, slot, 8)),
                orErrorInvalidResourceHandle);
  }
  CHECK_ERROR(orIpcOpenEventHandle(&opened, forge(event, 48, 77, 8)), orErrorInvalidResourceHandle);
  CHECK_ERROR(orIpcOpenEventHandle(&opened, forge(forge(event, 40, 7, 8), 48, 0, 8)),
              orErrorInvalidResourceHandle);
  producer.channel.signal();
  producer.check_success();
}

namespace {

// Handles as a program that cheats might make them. See forge().
class Alterations {
 public:
  explicit Alterations(uint64_t seed) : random_(seed) {}

  template <typename Handle>
  Handle alter(Handle handle, const Handle& other) {
    switch (below(8)) {
      case 0:
        for (char& byte : handle.reserved) byte = static_cast<char>(below(256));
        return handle;
      case 1:
        handle.reserved[below(OPENREG_IPC_HANDLE_SIZE)] ^= static_cast<char>(1 + below(255));
        return handle;
      case 2:  // a handle of another kind
        return forge(other, 0, read(other, 0, 1), 1);
      default:
        for (uint64_t count = 1 + below(3); count != 0; --count) {
          const Field& field = fields[below(std::size(fields))];
          handle = forge(handle, field.offset, number(handle, other, field), field.size);
        }
        return handle;
    }
  }

 private:
  struct Field {
    size_t offset;
    size_t size;
  };

  static constexpr Field fields[] = {{0, 4},  {4, 4},  {8, 8},  {16, 8}, {24, 8},
                                     {32, 2}, {34, 2}, {40, 8}, {48, 8}, {56, 8}};

  uint64_t below(uint64_t count) { return random_() % count; }

  template <typename Handle>
  static uint64_t read(const Handle& handle, size_t offset, size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, handle.reserved + offset, size);
    return value;
  }

  // At a limit, near the true one, that of another handle, or any.
  template <typename Handle>
  uint64_t number(const Handle& handle, const Handle& other, const Field& field) {
    const uint64_t old = read(handle, field.offset, field.size);
    switch (below(6)) {
      case 0:
        return below(3);
      case 1:
        return ~below(3) >> below(2);
      case 2:
        return old + below(64) - 32;
      case 3:
        return (uint64_t{1} << below(8 * field.size)) + below(3) - 1;
      case 4:
        return read(other, field.offset, field.size);
      default:
        return random_();
    }
  }

  std::mt19937_64 random_;
};

// Of each kind of handle.
int alteration_count() {
  const char* full = std::getenv("OPENREG_TEST_FULL");
  return full != nullptr && std::string(full) == "1" ? 100'000 : 3'000;
}

void check_refusal(orError_t error) {
  CHECK(error == orErrorInvalidResourceHandle || error == orErrorProcessEnded ||
        error == orErrorOperatingSystem || error == orErrorInvalidDevice ||
        error == orErrorNotPermitted || error == orErrorNotSupported);
  CHECK(std::string(orGetLastErrorMessage()) != "");
}

// Reads the ends of what was opened, which ends the process if they are not there.
void check_opened(char* memory, uint64_t size) {
  orPointerAttributes attributes;
  CHECK_OK(orPointerGetAttributes(&attributes, memory + size - 1));
  CHECK(attributes.allocationBase == memory);
  CHECK(attributes.allocationSize >= size);
  char byte = 0;
  CHECK_OK(orMemcpy(&byte, memory, 1, orMemcpyDeviceToHost));
  CHECK_OK(orMemcpy(&byte, memory + size - 1, 1, orMemcpyDeviceToHost));
}

// The address of the size of device 0's arena in the mapped ledger of a handle: after version,
// identity, and the list of leases, it has a file's number, its identity and its size.
uint64_t* find_arena_size(const orIpcMemHandle_t& handle) {
  constexpr size_t identity_size = 32;
  constexpr size_t arena_offset = 8 + identity_size + 8;
  std::ifstream file("/proc/self/maps");
  for (std::string line; std::getline(file, line);) {
    if (line.find("memfd:openreg-ledger") == std::string::npos) continue;
    char* ledger = reinterpret_cast<char*>(std::stoull(line, nullptr, 16));
    if (std::memcmp(ledger + 8, handle.reserved, identity_size) == 0) {
      return reinterpret_cast<uint64_t*>(ledger + arena_offset + 16);
    }
  }
  test::fail(__FILE__, __LINE__, "the ledger is not mapped");
}

template <typename To, typename From>
To as_handle(const From& handle) {
  To other;
  std::memcpy(&other, &handle, sizeof(other));
  return other;
}

}  // namespace

TEST(altered_handles_are_refused_or_name_memory_that_is_there) {
  Process producer = start(exit_after_sharing);
  const auto memory = producer.channel.receive<orIpcMemHandle_t>();
  const auto lease = producer.channel.receive<orIpcLeaseHandle_t>();
  const auto event = producer.channel.receive<orIpcEventHandle_t>();
  char* own = test::device_malloc(memory_size);
  Alterations alterations(34);
  int opened_count = 0;
  for (int i = 0; i < alteration_count(); ++i) {
    const auto other = i % 2 == 0 ? share(own) : as_handle<orIpcMemHandle_t>(event);
    const orIpcMemHandle_t altered = alterations.alter(memory, other);
    void* pointer = nullptr;
    const orError_t error = orIpcOpenMemHandle(&pointer, altered, 0);
    if (error != orSuccess) {
      check_refusal(error);
      continue;
    }
    uint64_t size = 0;
    std::memcpy(&size, altered.reserved + 48, sizeof(size));
    check_opened(static_cast<char*>(pointer), size);
    CHECK_OK(orIpcCloseMemHandle(pointer));
    ++opened_count;
  }
  CHECK(opened_count > 0);
  for (int i = 0; i < alteration_count(); ++i) {
    const auto other = as_handle<orIpcEventHandle_t>(lease);
    orEvent_t opened = nullptr;
    const orError_t error = orIpcOpenEventHandle(&opened, alterations.alter(event, other));
    if (error != orSuccess) {
      check_refusal(error);
      continue;
    }
    CHECK_OK(orEventQuery(opened));
    CHECK_OK(orEventDestroy(opened));
  }
  for (int i = 0; i < alteration_count(); ++i) {
    const auto other = as_handle<orIpcLeaseHandle_t>(memory);
    const orIpcLeaseHandle_t altered = alterations.alter(lease, other);
    unsigned long long number = 0;
    if (orIpcLeaseFind(&number, altered) == orSuccess) CHECK_EQUAL(number, 0ull);
    orIpcLease_t taken = nullptr;
    const orError_t error = orIpcLeaseTake(&taken, altered);
    if (error != orSuccess) {
      check_refusal(error);
    } else {
      CHECK_OK(orIpcLeaseEnd(taken));
    }
  }
  check_content(open_memory(memory), 1);
  producer.channel.signal();
  producer.check_success();
}

TEST(a_ledger_that_changes_makes_no_mapping_larger) {
  Process producer = start([](Channel& channel) {
    CHECK_OK(orSetDevice(0));
    char* memory = test::device_malloc(memory_size);
    channel.send(share(memory));
    channel.wait();
  });
  const auto handle = producer.channel.receive<orIpcMemHandle_t>();
  char* memory = open_memory(handle);
  // Increases the size of the arena in the producer's ledger, which is mapped for writing here.
  uint64_t* size = find_arena_size(handle);
  const uint64_t true_size = *size;
  *size = 2 * true_size;
  void* pointer = nullptr;
  CHECK_ERROR(orIpcOpenMemHandle(&pointer, forge(handle, 48, true_size + 1, 8), 0),
              orErrorInvalidResourceHandle);
  *size = true_size;
  CHECK_OK(orIpcCloseMemHandle(memory));
  producer.channel.signal();
  producer.check_success();
}

TEST(touching_the_memory_of_another_process_names_it) {
  Process producer = start(exit_after_sharing);
  const auto handle = producer.channel.receive<orIpcMemHandle_t>();
  const test::ChildResult result = test::run_child([&] {
    char* memory = open_memory(handle);
    static_cast<volatile char*>(memory)[20] = 1;
  });
  CHECK(WIFSIGNALED(result.status) && WTERMSIG(result.status) == SIGSEGV);
  CHECK_CONTAINS(result.error, "device 0 of process " + std::to_string(producer.id));
  CHECK_CONTAINS(result.error, "(size 10000 bytes) + offset 20");
  producer.channel.signal();
  producer.check_success();
}

TEST(memory_of_a_larger_process_or_of_a_missing_device_is_refused) {
  setenv("OPENREG_DEVICE_MEMORY", "64MiB", 1);
  Process producer = start([](Channel& channel) {
    char* first = test::device_malloc(memory_size);
    channel.send(share(first));
    CHECK_OK(orSetDevice(1));
    channel.send(share(test::device_malloc(memory_size)));
    channel.wait();
  });
  const auto large = producer.channel.receive<orIpcMemHandle_t>();
  const auto missing = producer.channel.receive<orIpcMemHandle_t>();
  setenv("OPENREG_DEVICE_MEMORY", "16MiB", 1);
  setenv("OPENREG_DEVICE_COUNT", "1", 1);
  void* pointer = nullptr;
  CHECK_ERROR(orIpcOpenMemHandle(&pointer, large, 0), orErrorNotSupported);
  CHECK_CONTAINS(orGetLastErrorMessage(), "OPENREG_DEVICE_MEMORY");
  CHECK_ERROR(orIpcOpenMemHandle(&pointer, missing, 0), orErrorInvalidDevice);
  producer.channel.signal();
  producer.check_success();
}

// --- Events

namespace {

// Sends an event that is recorded after a gate, and opens the gate on request.
void record_behind_a_gate(Channel& channel) {
  const orStream_t stream = make_stream();
  orEvent_t event = make_shared_event();
  char* memory = test::device_malloc(memory_size);
  static Gate& gate = *new Gate;  // the worker may still be in it at exit
  gate.hold(stream);
  CHECK_OK(orMemsetAsync(memory, 7, memory_size, stream));
  CHECK_OK(orEventRecord(event, stream));
  gate.wait_until_reached();
  channel.send(share(memory));
  channel.send(share(event));
  channel.wait();
  gate.open();
  CHECK_OK(orEventSynchronize(event));
  channel.wait();
}

}  // namespace

TEST(a_stream_waits_for_an_event_of_another_process) {
  Process producer = start(record_behind_a_gate);
  char* memory = open_memory(producer.channel.receive<orIpcMemHandle_t>());
  orEvent_t event = open_event(producer.channel.receive<orIpcEventHandle_t>());
  const orStream_t stream = make_stream();
  CHECK_ERROR(orEventQuery(event), orErrorNotReady);
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  static bool has_seen_the_value = false;
  CHECK_OK(launch(stream, "look", [memory] {
    has_seen_the_value = *test::kernel_address(memory) == 7;
    return orSuccess;
  }));
  CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
  CHECK_OK(orEventDestroy(event));
  producer.channel.signal();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(has_seen_the_value);
  producer.channel.signal();
  producer.check_success();
}

TEST(a_host_waits_for_an_event_of_another_process) {
  Process producer = start(record_behind_a_gate);
  char* memory = open_memory(producer.channel.receive<orIpcMemHandle_t>());
  orEvent_t event = open_event(producer.channel.receive<orIpcEventHandle_t>());
  std::thread waiting([event] { CHECK_OK(orEventSynchronize(event)); });
  producer.channel.signal();
  waiting.join();
  CHECK_OK(orEventQuery(event));
  check_content(memory, 7);
  producer.channel.signal();
  producer.check_success();
}

TEST(a_wait_refers_to_the_record_at_the_time_of_the_call) {
  Process producer = start([](Channel& channel) {
    const orStream_t first = make_stream();
    const orStream_t second = make_stream();
    orEvent_t event = make_shared_event();
    static Gate& gate = *new Gate;  // the worker may still be in it at exit
    channel.send(share(event));
    channel.wait();
    gate.hold(first);
    CHECK_OK(orEventRecord(event, first));
    channel.signal();
    channel.wait();
    CHECK_OK(orEventRecord(event, second));
    CHECK_OK(orEventSynchronize(event));
    channel.signal();
    channel.wait();
    gate.open();
    channel.wait();
  });
  orEvent_t event = open_event(producer.channel.receive<orIpcEventHandle_t>());
  const orStream_t stream = make_stream();
  CHECK_OK(orEventQuery(event));  // never recorded
  CHECK_OK(orEventSynchronize(event));
  producer.channel.signal();
  producer.channel.wait();
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  producer.channel.signal();
  producer.channel.wait();
  CHECK_OK(orEventQuery(event));                        // the second record
  CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);  // waits for the first
  producer.channel.signal();
  CHECK_OK(orStreamSynchronize(stream));
  producer.channel.signal();
  producer.check_success();
}

namespace {

// Receives an event and records it after a gate, and opens the gate on request.
void record_received_event(Channel& channel) {
  const orStream_t stream = make_stream();
  orEvent_t event = open_event(channel.receive<orIpcEventHandle_t>());
  static Gate& gate = *new Gate;  // the worker may still be in it at exit
  gate.hold(stream);
  CHECK_OK(orEventRecord(event, stream));
  gate.wait_until_reached();
  CHECK_ERROR(orEventQuery(event), orErrorNotReady);
  channel.signal();
  channel.wait();
  gate.open();
  CHECK_OK(orEventSynchronize(event));
  channel.signal();
  channel.wait();
}

}  // namespace

TEST(a_record_of_the_process_that_received_the_event_is_waited_for) {
  Process other = start(record_received_event);
  orEvent_t event = make_shared_event();
  other.channel.send(share(event));
  other.channel.wait();
  const orStream_t stream = make_stream();
  CHECK_ERROR(orEventQuery(event), orErrorNotReady);
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
  other.channel.signal();
  CHECK_OK(orEventSynchronize(event));
  CHECK_OK(orStreamSynchronize(stream));
  other.channel.wait();
  CHECK_OK(orEventRecord(event, stream));  // the latest one again
  CHECK_OK(orEventSynchronize(event));
  other.channel.signal();
  other.check_success();
}

TEST(a_record_of_a_process_that_received_the_event_and_dies_completes_with_an_error) {
  Process other = start(record_received_event);
  orEvent_t event = make_shared_event();
  other.channel.send(share(event));
  other.channel.wait();
  const orStream_t stream = make_stream();
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  other.kill();
  CHECK_ERROR(orStreamSynchronize(stream), orErrorProcessEnded);
  CHECK_ERROR(orEventSynchronize(event), orErrorProcessEnded);
  CHECK_CONTAINS(orGetLastErrorMessage(), std::to_string(other.id));
}

TEST(an_event_of_a_process_that_dies_completes_with_an_error) {
  Process producer = start(record_behind_a_gate);
  producer.channel.receive<orIpcMemHandle_t>();
  orEvent_t event = open_event(producer.channel.receive<orIpcEventHandle_t>());
  const orStream_t stream = make_stream();
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  producer.kill();
  CHECK_ERROR(orStreamSynchronize(stream), orErrorProcessEnded);
  CHECK_ERROR(orEventSynchronize(event), orErrorProcessEnded);
  CHECK_CONTAINS(orGetLastErrorMessage(), std::to_string(producer.id));
  CHECK_ERROR(orEventQuery(event), orErrorProcessEnded);
  CHECK_OK(orEventDestroy(event));
}

TEST(an_event_carries_a_failure_to_another_process) {
  Process producer = start([](Channel& channel) {
    const orStream_t stream = make_stream();
    orEvent_t event = make_shared_event();
    CHECK_OK(test::launch_failure(stream, orErrorUnknown));
    CHECK_OK(orEventRecord(event, stream));
    channel.send(share(event));
    channel.wait();
    CHECK_ERROR(orEventSynchronize(event), orErrorUnknown);
  });
  orEvent_t event = open_event(producer.channel.receive<orIpcEventHandle_t>());
  CHECK_ERROR(orEventSynchronize(event), orErrorLaunchFailure);
  producer.channel.signal();
  producer.check_success();
}

TEST(an_event_that_its_process_destroyed_is_recognized) {
  Process producer = start([](Channel& channel) {
    orEvent_t event = make_shared_event();
    const auto handle = share(event);
    channel.send(handle);
    channel.wait();
    CHECK_OK(orEventDestroy(event));
    make_shared_event();  // in the same place of the ledger
    channel.signal();
    channel.wait();
  });
  const auto handle = producer.channel.receive<orIpcEventHandle_t>();
  orEvent_t event = open_event(handle);
  producer.channel.signal();
  producer.channel.wait();
  CHECK_ERROR(orStreamWaitEvent(nullptr, event, 0), orErrorInvalidResourceHandle);
  CHECK_ERROR(orEventQuery(event), orErrorInvalidResourceHandle);
  orEvent_t again = nullptr;
  CHECK_ERROR(orIpcOpenEventHandle(&again, handle), orErrorInvalidResourceHandle);
  CHECK_OK(orEventDestroy(event));
  producer.channel.signal();
  producer.check_success();
}

TEST(an_event_recorded_on_an_idle_stream_is_complete) {
  orEvent_t event = make_shared_event();
  CHECK_OK(launch(nullptr, "earlier", [] { return orSuccess; }));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK_OK(orEventRecord(event, nullptr));
  CHECK_OK(orEventQuery(event));
  CHECK_OK(orEventSynchronize(event));
}

TEST(records_come_and_go_without_end) {
  orEvent_t event = make_shared_event();
  for (int i = 0; i < 300'000; ++i) {
    CHECK_OK(launch(nullptr, "work", [] { return orSuccess; }));
    CHECK_OK(orEventRecord(event, nullptr));
  }
  CHECK_OK(orEventSynchronize(event));
}

// --- Leases

TEST(a_lease_ends_when_its_holder_ends_it) {
  Process consumer = start([](Channel& channel) {
    orIpcLease_t lease = nullptr;
    const auto handle = channel.receive<orIpcLeaseHandle_t>();
    CHECK_OK(orIpcLeaseTake(&lease, handle));
    orIpcLease_t again = nullptr;
    CHECK_ERROR(orIpcLeaseTake(&again, handle), orErrorInvalidResourceHandle);
    unsigned long long number = 1;
    CHECK_OK(orIpcLeaseFind(&number, handle));
    CHECK_EQUAL(number, 0u);
    channel.signal();
    channel.wait();
    CHECK_OK(orIpcLeaseEnd(lease));
    CHECK_OK(orIpcLeaseEnd(nullptr));
    channel.signal();
    channel.wait();
  });
  const Grant granted = grant();
  unsigned long long number = 0;
  CHECK_OK(orIpcLeaseFind(&number, granted.handle));
  CHECK_EQUAL(number, granted.number);
  consumer.channel.send(granted.handle);
  consumer.channel.wait();
  CHECK(collect(true).empty());
  CHECK_ERROR(orIpcLeaseRevoke(granted.number), orErrorNotPermitted);
  consumer.channel.signal();
  consumer.channel.wait();
  CHECK(collect(false) == std::vector{granted.number});
  CHECK(collect(true).empty());
  CHECK_ERROR(orIpcLeaseRevoke(granted.number), orErrorInvalidValue);
  consumer.channel.signal();
  consumer.check_success();
}

TEST(a_lease_ends_when_its_holder_dies) {
  Process consumer = start([](Channel& channel) {
    orIpcLease_t leases[2];
    for (orIpcLease_t& lease : leases) {
      CHECK_OK(orIpcLeaseTake(&lease, channel.receive<orIpcLeaseHandle_t>()));
    }
    CHECK_OK(orIpcLeaseEnd(leases[0]));
    channel.signal();
    channel.wait();
  });
  const Grant grants[] = {grant(), grant(), grant()};
  for (int i = 0; i < 2; ++i) consumer.channel.send(grants[i].handle);
  consumer.channel.wait();
  consumer.kill();
  CHECK_EQUAL(collect(true).size(), 2u);
  CHECK(collect(true).empty());
  CHECK_OK(orIpcLeaseRevoke(grants[2].number));
  CHECK_ERROR(orIpcLeaseRevoke(grants[2].number), orErrorInvalidValue);
}

TEST(a_revoked_lease_cannot_be_taken) {
  Process consumer = start([](Channel& channel) {
    orIpcLease_t lease = nullptr;
    CHECK_ERROR(orIpcLeaseTake(&lease, channel.receive<orIpcLeaseHandle_t>()),
                orErrorInvalidResourceHandle);
  });
  const Grant granted = grant();
  CHECK_OK(orIpcLeaseRevoke(granted.number));
  const Grant in_its_place = grant();
  CHECK(in_its_place.number != granted.number);
  consumer.channel.send(granted.handle);
  consumer.check_success();
}

TEST(leases_are_taken_and_ended_by_many_threads) {
  static constexpr int thread_count = 4;
  static constexpr int lease_count = 500;
  Process consumer = start([](Channel& channel) {
    std::vector<std::vector<orIpcLeaseHandle_t>> handles(thread_count);
    for (auto& own : handles) {
      for (int i = 0; i < lease_count; ++i) own.push_back(channel.receive<orIpcLeaseHandle_t>());
    }
    std::vector<std::thread> threads;
    for (const auto& own : handles) {
      threads.emplace_back([&own] {
        for (const auto& handle : own) {
          orIpcLease_t lease = nullptr;
          CHECK_OK(orIpcLeaseTake(&lease, handle));
          CHECK_OK(orIpcLeaseEnd(lease));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    channel.signal();
    channel.wait();
  });
  for (int i = 0; i < thread_count * lease_count; ++i) consumer.channel.send(grant().handle);
  consumer.channel.wait();
  CHECK_EQUAL(collect(false).size(), size_t{thread_count * lease_count});
  consumer.channel.signal();
  consumer.check_success();
}

TEST(a_forked_child_shares_nothing) {
  char* memory = test::device_malloc(memory_size);
  orEvent_t event = make_shared_event();
  const Grant granted = grant();
  test::check_child([&] {
    orIpcMemHandle_t memory_handle;
    orIpcEventHandle_t event_handle;
    CHECK_ERROR(orIpcGetMemHandle(&memory_handle, memory), orErrorForked);
    CHECK_ERROR(orIpcGetEventHandle(&event_handle, event), orErrorForked);
    CHECK_ERROR(orIpcLeaseRevoke(granted.number), orErrorForked);
    CHECK_OK(orEventDestroy(event));
  });
  CHECK_OK(orIpcLeaseRevoke(granted.number));
  CHECK_OK(orEventDestroy(event));
}

TEST(exit_does_not_wait_for_another_process) {
  static std::thread waiting;
  // Runs after the library's own handler, which is registered later.
  std::atexit([] { waiting.join(); });
  Process producer = start(record_behind_a_gate);
  producer.channel.receive<orIpcMemHandle_t>();
  orEvent_t event = open_event(producer.channel.receive<orIpcEventHandle_t>());
  const orStream_t stream = make_stream();
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  waiting = std::thread([event] { CHECK_ERROR(orEventSynchronize(event), orErrorNotPermitted); });
}
