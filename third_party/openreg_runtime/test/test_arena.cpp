// The allocator of one device's memory.
#include <random>

#include "base/os.h"
#include "check.h"
#include "memory/arena.h"

using openreg::Arena;

namespace {

constexpr size_t capacity = size_t{16} << 20;
constexpr size_t unit = OPENREG_MEMORY_ALIGNMENT;

struct MappedArena {
  MappedArena() : base(map()), arena(base, 0, capacity, capacity) {}

  static uintptr_t map() {
    void* address = openreg::os::reserve_addresses(capacity);
    const int file = openreg::os::create_memory_file("test", capacity);
    CHECK(address != nullptr && file >= 0);
    CHECK(openreg::os::map_memory_file(address, capacity, file));
    return reinterpret_cast<uintptr_t>(address);
  }

  char* bytes(uintptr_t address) const { return reinterpret_cast<char*>(address); }

  bool is_zero(uintptr_t address, size_t size) const {
    const char* begin = bytes(address);
    return std::all_of(begin, begin + size, [](char byte) { return byte == 0; });
  }

  uintptr_t base;
  Arena arena;
};

}  // namespace

TEST(allocations_are_aligned_and_disjoint) {
  MappedArena mapped;
  Arena& arena = mapped.arena;
  const uintptr_t first = arena.allocate(1);
  const uintptr_t second = arena.allocate(unit + 1);
  const uintptr_t third = arena.allocate(unit);
  CHECK_EQUAL(first, mapped.base);
  CHECK_EQUAL(second, first + unit);
  CHECK_EQUAL(third, second + 2 * unit);
  CHECK_EQUAL(arena.free_size(), capacity - 4 * unit);
  CHECK(arena.is_valid());
}

TEST(the_best_fit_is_used) {
  MappedArena mapped;
  Arena& arena = mapped.arena;
  const uintptr_t large_hole = arena.allocate(8 * unit);
  CHECK(arena.allocate(unit) != 0);
  const uintptr_t small_hole = arena.allocate(2 * unit);
  CHECK(arena.allocate(unit) != 0);
  CHECK_EQUAL(arena.release(large_hole), 8 * unit);
  CHECK_EQUAL(arena.release(small_hole), 2 * unit);
  CHECK_EQUAL(arena.allocate(2 * unit), small_hole);
  CHECK_EQUAL(arena.allocate(2 * unit), large_hole);
  CHECK(arena.is_valid());
}

TEST(freed_neighbors_become_one_range) {
  MappedArena mapped;
  Arena& arena = mapped.arena;
  const uintptr_t a = arena.allocate(unit);
  const uintptr_t b = arena.allocate(unit);
  const uintptr_t c = arena.allocate(unit);
  for (uintptr_t address : {a, c, b}) {
    CHECK_EQUAL(arena.release(address), unit);
    CHECK(arena.is_valid());
  }
  CHECK_EQUAL(arena.largest_free_size(), capacity);
  CHECK_EQUAL(arena.free_size(), capacity);
}

TEST(the_whole_arena_can_be_allocated_but_no_more) {
  MappedArena mapped;
  Arena& arena = mapped.arena;
  CHECK_EQUAL(arena.allocate(capacity + 1), uintptr_t{0});
  CHECK_EQUAL(arena.allocate(SIZE_MAX), uintptr_t{0});
  CHECK_EQUAL(arena.allocate(capacity), mapped.base);
  CHECK_EQUAL(arena.allocate(1), uintptr_t{0});
  CHECK_EQUAL(arena.largest_free_size(), size_t{0});
}

TEST(find_knows_live_allocations_only) {
  MappedArena mapped;
  Arena& arena = mapped.arena;
  const uintptr_t address = arena.allocate(100);
  CHECK_EQUAL(arena.find(address + 99)->address, address);
  CHECK_EQUAL(arena.find(address)->size, size_t{100});
  CHECK(!arena.find(address + 100));
  CHECK(!arena.find(address - 1));
  CHECK_EQUAL(arena.release(address + 1), size_t{0});
  CHECK_EQUAL(arena.release(address), size_t{100});
  CHECK_EQUAL(arena.release(address), size_t{0});
  CHECK(!arena.find(address));
}

TEST(try_find_does_not_wait_for_the_lock) {
  MappedArena mapped;
  const uintptr_t address = mapped.arena.allocate(100);
  bool is_known = false;
  CHECK_EQUAL(mapped.arena.try_find(address, &is_known)->address, address);
  CHECK(is_known);
  mapped.arena.lock();
  CHECK(!mapped.arena.try_find(address, &is_known));
  CHECK(!is_known);
  mapped.arena.unlock();
}

TEST(fresh_memory_reads_as_zero_whatever_was_freed) {
  MappedArena mapped;
  Arena& arena = mapped.arena;
  std::mt19937 random(7);
  std::vector<std::pair<uintptr_t, size_t>> live;
  for (int step = 0; step < 4000; ++step) {
    if (live.size() < 40 && random() % 2 == 0) {
      const size_t size = 1 + random() % (random() % 4 == 0 ? 200'000 : 3'000);
      const uintptr_t address = arena.allocate(size);
      CHECK(address != 0);
      CHECK(mapped.is_zero(address, size));
      std::memset(mapped.bytes(address), 0xab, size);
      live.emplace_back(address, size);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      CHECK_EQUAL(arena.release(live.back().first), live.back().second);
      live.pop_back();
    }
    if (step % 100 == 0) CHECK(arena.is_valid());
  }
  for (const auto& [address, size] : live) CHECK_EQUAL(arena.release(address), size);
  CHECK_EQUAL(arena.largest_free_size(), capacity);
  CHECK(mapped.is_zero(mapped.base, capacity));
}
