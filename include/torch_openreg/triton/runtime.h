// What generated kernels are made of besides their own arithmetic: programs, checked accesses to
// memory, atomic operations, products of matrices, and text.
//
// A kernel defines two macros before it includes this: whether accesses are checked, and whether
// the caller may observe them. A function that returns false has recorded an error: the program
// returns.
#pragma once

#include <torch_openreg/triton/functions.h>
#include <torch_openreg/triton/kernel.h>
#include <torch_openreg/triton/numbers.h>

#if !defined(OPENREG_TRITON_CHECKS)
#define OPENREG_TRITON_CHECKS 1
#endif
#if !defined(OPENREG_TRITON_OBSERVED)
#define OPENREG_TRITON_OBSERVED 0
#endif

extern "C" {
void* aligned_alloc(unsigned long alignment, unsigned long size);
void free(void* pointer);
int snprintf(char* text, unsigned long size, const char* format, ...);
long write(int file, const void* text, unsigned long size);
struct timespec;
int clock_gettime(int clock, struct timespec* time);
}

namespace openreg_triton {

static inline bool is_likely(bool condition) { return __builtin_expect(condition, true); }

struct Range {
  uint64_t begin;
  uint64_t end;
};

// One launch, as its threads share it.
struct State {
  const OpenRegTritonLaunch* launch;
  const Range* ranges;       // one per pointer argument, in order
  const int32_t* arguments;  // of each range, the index of the kernel's argument
  int32_t range_count;
  OpenRegTritonError* error;
  int32_t is_stopped;
  uint64_t next_program;
};

struct Program {
  State* state;
  int64_t offset;  // from device addresses to those of the process
  uint32_t id[3];
};

// Records an error, if it is the first.
__attribute__((noinline, cold)) static bool fail(const Program& program, OpenRegTritonStatus status,
                                                 int32_t location, int32_t argument,
                                                 uint64_t address, uint64_t size) {
  State& state = *program.state;
  if (__atomic_exchange_n(&state.is_stopped, 1, __ATOMIC_ACQ_REL) == 0) {
    *state.error = {status,  location, argument, {program.id[0], program.id[1], program.id[2]},
                    address, size};
  }
  return false;
}

static inline bool is_stopped(const Program& program) {
  return __atomic_load_n(&program.state->is_stopped, __ATOMIC_RELAXED) != 0;
}

static inline uint64_t now_ns() {
  long time[2];
  clock_gettime(1, reinterpret_cast<struct timespec*>(time));  // CLOCK_MONOTONIC
  return static_cast<uint64_t>(time[0]) * 1000000000u + static_cast<uint64_t>(time[1]);
}

// Called in each iteration of a loop that may wait. `began` is 0 before the first.
__attribute__((noinline)) static bool may_wait_on(const Program& program, int32_t location,
                                                  uint64_t& turns, uint64_t& began) {
  if (is_stopped(program)) {
    return false;
  }
  const uint64_t limit = program.state->launch->wait_limit_ns;
  if (limit == 0 || ++turns % 1024 != 0) {
    return true;
  }
  const uint64_t now = now_ns();
  began = began == 0 ? now : began;
  return now - began < limit || fail(program, OPENREG_TRITON_WAIT, location, -1, 0, 0);
}

// Accesses. `range` is the index of the pointer argument from which the address was computed, or
// -1.

static inline bool contains(const Range& range, uint64_t address, uint64_t size) {
  return address >= range.begin && address <= range.end && range.end - address >= size;
}

__attribute__((noinline)) static bool is_anywhere(const Program& program, uint64_t address,
                                                  uint64_t size) {
  const State& state = *program.state;
  for (int32_t index = 0; index < state.range_count; ++index) {
    if (contains(state.ranges[index], address, size)) {
      return true;
    }
  }
  const OpenRegTritonLaunch& launch = *state.launch;
  return launch.is_allocated != nullptr && launch.is_allocated(launch.context, address, size);
}

// Whether bytes may be accessed, without a record if not.
static inline bool is_legal(const Program& program, int32_t range, uint64_t address,
                            uint64_t size) {
  if (!OPENREG_TRITON_CHECKS) {
    return true;
  }
  if (range >= 0) {
    const Range& argument = program.state->ranges[range];
    if (is_likely(contains(argument, address, size))) {
      return true;
    }
    if (argument.end != 0) {
      return false;
    }
  }
  return is_anywhere(program, address, size);
}

// Whether a whole row may be used without a look at each element.
static inline bool is_row_legal(const Program& program, int32_t range, uint64_t address,
                                uint64_t size) {
  return !OPENREG_TRITON_OBSERVED && is_legal(program, range, address, size);
}

static inline int32_t argument_of(const Program& program, int32_t range) {
  return range < 0 ? -1 : program.state->arguments[range];
}

static inline void observe(const Program& program, int32_t range, int32_t location,
                           OpenRegTritonAccessKind kind, uint64_t address, uint64_t size,
                           int64_t count) {
  if (OPENREG_TRITON_OBSERVED && program.state->launch->observe != nullptr) {
    const OpenRegTritonAccess access = {kind,
                                        location,
                                        argument_of(program, range),
                                        {program.id[0], program.id[1], program.id[2]},
                                        address,
                                        size,
                                        static_cast<uint64_t>(count),
                                        static_cast<int64_t>(size)};
    program.state->launch->observe(program.state->launch->context, &access);
  }
}

static inline bool check(const Program& program, int32_t range, int32_t location,
                         OpenRegTritonAccessKind kind, uint64_t address, uint64_t size) {
  if (!is_likely(is_legal(program, range, address, size))) {
    const int32_t status = kind == OPENREG_TRITON_VOLATILE_READ
                               ? int32_t(OPENREG_TRITON_ILLEGAL_READ)
                               : int32_t(OPENREG_TRITON_ILLEGAL_READ) + int32_t(kind);
    return fail(program, static_cast<OpenRegTritonStatus>(status), location,
                argument_of(program, range), address, size);
  }
  observe(program, range, location, kind, address, size, 1);
  return true;
}

// Elements one after another: together if all of them are legal, else each, up to the first that is
// not.
static inline bool check_run(const Program& program, int32_t range, int32_t location,
                             OpenRegTritonAccessKind kind, uint64_t address, uint64_t size,
                             int64_t count) {
  if (is_likely(is_legal(program, range, address, size * static_cast<uint64_t>(count)))) {
    observe(program, range, location, kind, address, size, count);
    return true;
  }
  for (int64_t index = 0; index < count; ++index) {
    if (!check(program, range, location, kind, address + static_cast<uint64_t>(index) * size,
               size)) {
      return false;
    }
  }
  return true;
}

// The first index from `begin` on whose mask is not `value`, or `count`.
static inline int64_t end_of_run(const bool* mask, bool value, int64_t begin, int64_t count) {
  if (mask == nullptr) {
    return value ? count : begin;
  }
  const void* end =
      __builtin_memchr(mask + begin, value ? 0 : 1, static_cast<uint64_t>(count - begin));
  return end == nullptr ? count : static_cast<const bool*>(end) - mask;
}

template <typename Bits>
static inline Bits* at(const Program& program, uint64_t address) {
  return reinterpret_cast<Bits*>(address + static_cast<uint64_t>(program.offset));
}

// Where the elements of a row are: one after another from an address on, or each at its own one.
static inline uint64_t address_of(uint64_t first, int64_t index, uint64_t size) {
  return first + static_cast<uint64_t>(index) * size;
}
static inline uint64_t address_of(const uint64_t* addresses, int64_t index, uint64_t) {
  return addresses[index];
}

// The end of the elements from `begin` on that one check is enough for, whose mask is true there.
static inline int64_t end_of_check(uint64_t, const bool* mask, int64_t begin, int64_t count) {
  return end_of_run(mask, true, begin, count);
}
static inline int64_t end_of_check(const uint64_t*, const bool*, int64_t begin, int64_t count) {
  return begin < count ? begin + 1 : count;
}

// Loads a row that may not be legal as a whole. Elements whose mask is false are not touched.
template <typename Bits, typename Addresses>
__attribute__((noinline)) static bool load_row(const Program& program, int32_t range,
                                               int32_t location, Addresses addresses, int64_t count,
                                               const bool* mask, Bits* row) {
  for (int64_t begin = 0, end; begin < count; begin = end) {
    end = end_of_run(mask, false, begin, count);
    for (int64_t index = begin; index < end; ++index) {
      row[index] = Bits();
    }
    begin = end;
    end = end_of_check(addresses, mask, begin, count);
    if (begin == end) {
      break;
    }
    const uint64_t first = address_of(addresses, begin, sizeof(Bits));
    if (!check_run(program, range, location, OPENREG_TRITON_READ, first, sizeof(Bits),
                   end - begin)) {
      return false;
    }
    for (int64_t index = begin; index < end; ++index) {
      row[index] = at<const Bits>(program, first)[index - begin];
    }
  }
  return true;
}

// Stores a row, likewise.
template <typename Bits, typename Addresses>
__attribute__((noinline)) static bool store_row(const Program& program, int32_t range,
                                                int32_t location, Addresses addresses,
                                                int64_t count, const bool* mask, const Bits* row) {
  for (int64_t begin = end_of_run(mask, false, 0, count), end; begin < count;
       begin = end_of_run(mask, false, end, count)) {
    end = end_of_check(addresses, mask, begin, count);
    const uint64_t first = address_of(addresses, begin, sizeof(Bits));
    if (!check_run(program, range, location, OPENREG_TRITON_WRITE, first, sizeof(Bits),
                   end - begin)) {
      return false;
    }
    for (int64_t index = begin; index < end; ++index) {
      at<Bits>(program, first)[index - begin] = row[index];
    }
  }
  return true;
}

// Whether addresses follow one another by the size of an element.
template <int64_t kSize, int64_t kCount>
static inline bool are_consecutive(const uint64_t* addresses) {
  const uint64_t first = addresses[0];
  uint64_t differs = 0;
  for (int64_t index = 0; index < kCount; ++index) {
    differs |= addresses[index] ^ (first + static_cast<uint64_t>(index * kSize));
  }
  return differs == 0;
}

// Whether a loop may read each element of one row just before it writes that of another: they do
// not overlap, or are the same.
template <uint64_t kSize, uint64_t kStoredSize, uint64_t kCount>
static inline bool is_apart(uint64_t address, uint64_t stored) {
  return address + kSize * kCount <= stored || stored + kStoredSize * kCount <= address ||
         (address == stored && kSize == kStoredSize);
}

// Atomic operations. Each is a function object that computes the new value.

#define OPENREG_TRITON_ATOMIC(name, expression) \
  struct name {                                 \
    template <typename T>                       \
    static inline T apply(T a, T b) {           \
      return static_cast<T>(expression);        \
    }                                           \
  };
OPENREG_TRITON_ATOMIC(AtomicAdd, a + b)
OPENREG_TRITON_ATOMIC(AtomicAnd, a& b)
OPENREG_TRITON_ATOMIC(AtomicOr, a | b)
OPENREG_TRITON_ATOMIC(AtomicXor, a ^ b)
OPENREG_TRITON_ATOMIC(AtomicExchange, (static_cast<void>(a), b))
OPENREG_TRITON_ATOMIC(AtomicMaximum, a > b ? a : b)
OPENREG_TRITON_ATOMIC(AtomicMinimum, a < b ? a : b)
OPENREG_TRITON_ATOMIC(AtomicMaximumUnsigned, Unsigned<T>(a) > Unsigned<T>(b) ? a : b)
OPENREG_TRITON_ATOMIC(AtomicMinimumUnsigned, Unsigned<T>(a) < Unsigned<T>(b) ? a : b)
#undef OPENREG_TRITON_ATOMIC

static inline bool check_atomic(const Program& program, int32_t range, int32_t location,
                                uint64_t address, uint64_t size,
                                OpenRegTritonAccessKind kind = OPENREG_TRITON_ATOMIC) {
  if (address % size != 0) {
    return fail(program, OPENREG_TRITON_MISALIGNED_ATOMIC, location, argument_of(program, range),
                address, size);
  }
  return check(program, range, location, kind, address, size);
}

// Another program holds what this one waits for: lets it run.
static inline void pause_thread() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

template <unsigned long kSize>
struct Word;
template <>
struct Word<1> {
  using Type = uint8_t;
};
template <>
struct Word<2> {
  using Type = uint16_t;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<8> {
  using Type = uint64_t;
};

template <typename Format, typename Operation>
static inline bool atomic_update(const Program& program, int32_t range, int32_t location,
                                 uint64_t address, typename Format::Register operand,
                                 typename Format::Register& old) {
  using Bits = typename Format::Bits;
  using Integer = typename Word<sizeof(Bits)>::Type;
  if (!check_atomic(program, range, location, address, sizeof(Bits))) {
    return false;
  }
  Integer* place = at<Integer>(program, address);
  Integer expected = __atomic_load_n(place, __ATOMIC_RELAXED);
  Integer desired;
  do {
    old = Format::decode(bits_of<Bits>(expected));
    desired = bits_of<Integer>(Format::encode(Operation::apply(old, operand)));
  } while (!__atomic_compare_exchange_n(place, &expected, desired, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE));
  return true;
}

template <typename Format>
static inline bool atomic_compare_exchange(const Program& program, int32_t range, int32_t location,
                                           uint64_t address, typename Format::Register compared,
                                           typename Format::Register stored,
                                           typename Format::Register& old) {
  using Bits = typename Format::Bits;
  using Integer = typename Word<sizeof(Bits)>::Type;
  if (!check_atomic(program, range, location, address, sizeof(Bits))) {
    return false;
  }
  Integer expected = bits_of<Integer>(Format::encode(compared));
  const bool is_exchanged = __atomic_compare_exchange_n(at<Integer>(program, address), &expected,
                                                        bits_of<Integer>(Format::encode(stored)),
                                                        false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  old = Format::decode(bits_of<Bits>(expected));
  if (!is_exchanged) {
    pause_thread();
  }
  return true;
}

template <typename Format>
static inline bool atomic_load(const Program& program, int32_t range, int32_t location,
                               uint64_t address, typename Format::Register& value) {
  using Bits = typename Format::Bits;
  using Integer = typename Word<sizeof(Bits)>::Type;
  if (!check_atomic(program, range, location, address, sizeof(Bits),
                    OPENREG_TRITON_VOLATILE_READ)) {
    return false;
  }
  const Integer bits = __atomic_load_n(at<Integer>(program, address), __ATOMIC_ACQUIRE);
  value = Format::decode(bits_of<Bits>(bits));
  return true;
}

template <typename Format>
static inline bool atomic_store(const Program& program, int32_t range, int32_t location,
                                uint64_t address, typename Format::Register value) {
  using Bits = typename Format::Bits;
  using Integer = typename Word<sizeof(Bits)>::Type;
  if (!check_atomic(program, range, location, address, sizeof(Bits))) {
    return false;
  }
  __atomic_store_n(at<Integer>(program, address), bits_of<Integer>(Format::encode(value)),
                   __ATOMIC_RELEASE);
  return true;
}

// Waits until an element has a value, for `timeout_ns` at most; `is_equal` is whether it has.
template <typename Format>
static bool atomic_poll(const Program& program, int32_t range, int32_t location, uint64_t address,
                        typename Format::Register expected, uint64_t timeout_ns, bool& is_equal) {
  const uint64_t end = timeout_ns == UINT64_MAX ? 0 : now_ns() + timeout_ns;
  uint64_t turns = 0;
  uint64_t began = 0;
  for (;;) {
    typename Format::Register value;
    if (!atomic_load<Format>(program, range, location, address, value)) {
      return false;
    }
    is_equal = value == expected;
    if (is_equal || (end != 0 && now_ns() >= end)) {
      return true;
    }
    if (!may_wait_on(program, location, turns, began)) {
      return false;
    }
    pause_thread();
  }
}

// Products. Matrices are dense in rows, `c` too, which is added to.

template <typename T>
struct Vector {
  static constexpr int kLanes = 64 / sizeof(T);
  typedef T Type __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
};

// Rows of `c` by `kVectors` vectors stay in registers while the whole of `k` is gone through.
template <typename T, int kRows, int kVectors>
static inline void multiply_tile(const T* a, int64_t lda, const T* b, int64_t ldb, T* c,
                                 int64_t ldc, int64_t depth) {
  using V = typename Vector<T>::Type;
  constexpr int kLanes = Vector<T>::kLanes;
  V sum[kRows][kVectors];
  for (int row = 0; row < kRows; ++row) {
    for (int vector = 0; vector < kVectors; ++vector) {
      sum[row][vector] = *reinterpret_cast<const V*>(c + row * ldc + vector * kLanes);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    V right[kVectors];
    for (int vector = 0; vector < kVectors; ++vector) {
      right[vector] = *reinterpret_cast<const V*>(b + k * ldb + vector * kLanes);
    }
    for (int row = 0; row < kRows; ++row) {
      const T left = a[row * lda + k];
      for (int vector = 0; vector < kVectors; ++vector) {
        sum[row][vector] += left * right[vector];
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int vector = 0; vector < kVectors; ++vector) {
      *reinterpret_cast<V*>(c + row * ldc + vector * kLanes) = sum[row][vector];
    }
  }
}

template <typename T>
static inline void multiply_rest(const T* a, int64_t lda, const T* b, int64_t ldb, T* c,
                                 int64_t ldc, int64_t rows, int64_t columns, int64_t depth) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < depth; ++k) {
      const T left = a[row * lda + k];
#pragma GCC ivdep
      for (int64_t column = 0; column < columns; ++column) {
        c[row * ldc + column] += left * b[k * ldb + column];
      }
    }
  }
}

template <typename T, int kRows, int kVectors>
static inline int64_t multiply_rows(const T* a, const T* b, T* c, int64_t rows, int64_t columns,
                                    int64_t depth) {
  constexpr int64_t kColumns = kVectors * Vector<T>::kLanes;
  int64_t column = 0;
  for (; column + kColumns <= columns; column += kColumns) {
    int64_t row = 0;
    for (; row + kRows <= rows; row += kRows) {
      multiply_tile<T, kRows, kVectors>(a + row * depth, depth, b + column, columns,
                                        c + row * columns + column, columns, depth);
    }
    for (; row < rows; ++row) {
      multiply_tile<T, 1, kVectors>(a + row * depth, depth, b + column, columns,
                                    c + row * columns + column, columns, depth);
    }
  }
  return column;
}

template <typename T, int64_t kRows, int64_t kColumns, int64_t kDepth>
__attribute__((noinline)) static void multiply(const T* a, const T* b, T* c) {
  int64_t column = multiply_rows<T, 8, 2>(a, b, c, kRows, kColumns, kDepth);
  if (column < kColumns) {
    multiply_rest(a, kDepth, b + column, kColumns, c + column, kColumns, kRows, kColumns - column,
                  kDepth);
  }
}

// Text of tl.device_print, collected and written in whole lines.
struct Text {
  const Program& program;
  char characters[4096];
  uint64_t size = 0;

  explicit Text(const Program& program) : program(program) {}
  ~Text() { flush(); }

  template <typename... Values>
  void add(const char* format, Values... values) {
    if (size + 512 > sizeof characters) {
      flush();
    }
    const int count = snprintf(characters + size, sizeof characters - size, format, values...);
    const uint64_t room = sizeof characters - 1 - size;
    size += count < 0                             ? 0
            : static_cast<uint64_t>(count) < room ? static_cast<uint64_t>(count)
                                                  : room;
  }

  void flush() {
    const OpenRegTritonLaunch& launch = *program.state->launch;
    if (size != 0 && launch.print != nullptr) {
      launch.print(launch.context, characters, size);
    } else if (size != 0) {
      static_cast<void>(write(1, characters, size) == 0);
    }
    size = 0;
  }
};

// Runs programs until none is left, as one of the launch's threads. `run` is the kernel.
template <typename Run>
static void run_programs(State& state, const uint64_t* slots, uint64_t arena_size, uint64_t total,
                         uint64_t chunk, Run run) {
  const OpenRegTritonLaunch& launch = *state.launch;
  Program program = {&state, launch.kernel_offset, {0, 0, 0}};
  char* arena = static_cast<char*>(aligned_alloc(64, arena_size));
  if (arena == nullptr) {
    fail(program, OPENREG_TRITON_OUT_OF_MEMORY, -1, -1, 0, arena_size);
    return;
  }
  while (!is_stopped(program)) {
    const uint64_t begin = __atomic_fetch_add(&state.next_program, chunk, __ATOMIC_RELAXED);
    const uint64_t end = begin + chunk < total ? begin + chunk : total;
    if (begin >= total) {
      break;
    }
    for (uint64_t index = begin; index < end && !is_stopped(program); ++index) {
      program.id[0] = static_cast<uint32_t>(index % launch.grid[0]);
      program.id[1] = static_cast<uint32_t>(index / launch.grid[0] % launch.grid[1]);
      program.id[2] = static_cast<uint32_t>(index / launch.grid[0] / launch.grid[1]);
      run(program, slots, arena);
    }
  }
  free(arena);
}

template <typename Run>
static OpenRegTritonStatus run_grid(const OpenRegTritonLaunch* launch, const uint64_t* slots,
                                    OpenRegTritonError* error, const Range* ranges,
                                    const int32_t* arguments, int32_t range_count,
                                    uint64_t arena_size, Run run) {
  OpenRegTritonError first = {};
  State state = {launch, ranges, arguments, range_count, &first, 0, 0};
  const uint64_t total = static_cast<uint64_t>(launch->grid[0]) * launch->grid[1] * launch->grid[2];
  const uint64_t threads = static_cast<uint64_t>(launch->threads) < total
                               ? static_cast<uint64_t>(launch->threads)
                               : total;
  // Small chunks, so that threads end together.
  const uint64_t chunk = total / (8 * threads) + 1;
  if (threads == 1) {
    run_programs(state, slots, arena_size, total, chunk, run);
  } else {
#if defined(_OPENMP)
#pragma omp parallel num_threads(static_cast<int>(threads))
#endif
    run_programs(state, slots, arena_size, total, chunk, run);
  }
  if (first.status != OPENREG_TRITON_SUCCESS) {
    *error = first;
  }
  return first.status;
}

}  // namespace openreg_triton
