// The ring of commands: places, full and empty rings, closing and stopping.
#include <memory>
#include <thread>

#include "check.h"
#include "queue/command.h"

using openreg::Command;
using openreg::CommandRing;
using openreg::ring_capacity;

namespace {

constexpr size_t header_size = sizeof(Command);

// One thread that plays producer and worker.
struct Ring {
  Ring() { CHECK_OK(ring.allocate()); }
  ~Ring() { ring.free(); }

  CommandRing::Status reserve(size_t closure_size, CommandRing::Slot* slot) {
    return ring.reserve(closure_size, /*counted_bytes=*/0, /*may_wait=*/false, slot);
  }

  // Puts a command in and commits it. Returns false if the ring is full.
  bool put(size_t closure_size) {
    CommandRing::Slot slot;
    const CommandRing::Status status = reserve(closure_size, &slot);
    if (status == CommandRing::Status::Full) return false;
    CHECK(status == CommandRing::Status::Granted);
    slot.command->is_large = false;
    *static_cast<uint64_t*>(slot.command->closure()) = slot.sequence;
    ring.commit(slot);
    return true;
  }

  // Takes a command out and returns its number.
  uint64_t take() {
    Command* command = ring.next();
    CHECK(command != nullptr);
    const uint64_t sequence = *static_cast<uint64_t*>(command->closure());
    ring.pop(command);
    return sequence;
  }

  CommandRing ring;
};

}  // namespace

TEST(commands_come_out_in_order_across_many_laps) {
  Ring ring;
  uint64_t put = 0;
  uint64_t taken = 0;
  for (size_t step = 0; step < 20'000; ++step) {
    if (ring.put(8 + step * 37 % OPENREG_MAX_INLINE_CLOSURE_SIZE)) ++put;
    if (step % 3 != 0 || put - taken > 200) CHECK_EQUAL(ring.take(), ++taken);
    if (put == taken) CHECK(ring.put(8) && ++put);
  }
  while (taken < put) CHECK_EQUAL(ring.take(), ++taken);
  CHECK_EQUAL(ring.ring.submitted(), put);
}

TEST(a_ring_fills_up_and_gives_back_a_quarter_at_a_time) {
  Ring ring;
  size_t count = 0;
  while (ring.put(header_size)) ++count;
  CHECK_EQUAL(count, ring_capacity / (2 * header_size) - 1);
  size_t taken = 0;
  do {
    ring.take();
    ++taken;
  } while (!ring.put(header_size));
  CHECK_EQUAL(taken, ring_capacity / 4 / (2 * header_size));
}

TEST(the_largest_commands_fill_the_ring_too) {
  Ring ring;
  uint64_t taken = 0;
  uint64_t put = 0;
  for (int lap = 0; lap < 5; ++lap) {
    while (ring.put(OPENREG_MAX_INLINE_CLOSURE_SIZE)) ++put;
    CHECK(put - taken >= ring_capacity / (header_size + OPENREG_MAX_INLINE_CLOSURE_SIZE) - 35);
    while (taken < put - 3) CHECK_EQUAL(ring.take(), ++taken);
  }
}

TEST(an_uncommitted_command_holds_back_later_ones) {
  Ring ring;
  CommandRing::Slot first;
  CHECK(ring.reserve(8, &first) == CommandRing::Status::Granted);
  CHECK(ring.put(8));
  std::atomic<bool> is_committed{false};
  std::thread committer([&] {
    first.command->is_large = false;
    *static_cast<uint64_t*>(first.command->closure()) = first.sequence;
    is_committed.store(true);
    ring.ring.commit(first);
  });
  CHECK_EQUAL(ring.take(), 1u);
  CHECK(is_committed.load());
  CHECK_EQUAL(ring.take(), 2u);
  committer.join();
}

TEST(a_ring_that_runs_empty_restarts_at_its_beginning) {
  Ring ring;
  std::atomic<uint64_t> taken{0};
  std::thread worker([&] {
    while (Command* command = ring.ring.next()) {
      ring.ring.pop(command);
      ++taken;
    }
  });
  // One command at a time, so that the worker finds the ring empty again and again.
  std::vector<const Command*> places;
  for (size_t used = 0; used < ring_capacity; used += 2 * header_size) {
    CommandRing::Slot slot;
    CHECK(ring.reserve(header_size, &slot) == CommandRing::Status::Granted);
    places.push_back(slot.command);
    ring.ring.commit(slot);
    while (taken.load() < slot.sequence) std::this_thread::yield();
    if (places.size() > 1 && places.back() == places.front()) break;
  }
  CHECK(places.back() == places.front());
  CHECK(places.size() < ring_capacity / (2 * header_size));
  ring.ring.close();
  worker.join();
}

TEST(a_sleeping_worker_is_woken) {
  Ring ring;
  for (uint64_t i = 1; i <= 20; ++i) {
    std::thread worker([&] { CHECK_EQUAL(ring.take(), i); });
    CHECK(ring.put(8));
    worker.join();
  }
}

TEST(a_closed_ring_gives_out_what_it_has_and_takes_no_more) {
  Ring ring;
  CHECK(ring.put(8));
  ring.ring.close();
  CHECK(ring.ring.is_closed());
  CommandRing::Slot slot;
  CHECK(ring.reserve(8, &slot) == CommandRing::Status::Closed);
  CHECK_EQUAL(ring.take(), 1u);
  CHECK(ring.ring.next() == nullptr);
}

TEST(closing_wakes_the_worker) {
  Ring ring;
  std::thread worker([&] { CHECK(ring.ring.next() == nullptr); });
  ring.ring.close();
  worker.join();
}

TEST(stopping_wakes_the_worker_and_waiting_producers) {
  Ring ring;
  while (ring.put(1000)) {
  }
  std::thread producer([&] {
    CommandRing::Slot slot;
    CHECK(ring.ring.reserve(1000, 0, /*may_wait=*/true, &slot) == CommandRing::Status::Stopped);
  });
  ring.ring.stop();
  producer.join();
  CommandRing::Slot slot;
  CHECK(ring.reserve(8, &slot) == CommandRing::Status::Stopped);
  Ring empty;
  std::thread worker([&] { CHECK(empty.ring.next() == nullptr); });
  empty.ring.stop();
  worker.join();
}
