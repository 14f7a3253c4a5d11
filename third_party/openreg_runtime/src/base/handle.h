// Handles: what the C functions give out for an object, and how they find it again.
//
// Note [Handles]
// A handle is a number, not an address. It tells the kind of its object, the slot of the object in
// the table of that kind, and how often the slot had been used before:
//
//   bit 63   62..56   55..30        29..4   3..0
//       0    kind     generation    slot    0
//
// Slots are never freed, and each stores the handle that it stands for now. So every 64-bit value
// may be looked up: that of a destroyed object, of another kind, an address, or any number. A slot
// whose generations are used up (after 2^26 objects) stays empty. A look-up takes no lock and costs
// three loads; a function that then uses the object locks the slot and looks again, since another
// thread may have destroyed the object.
//
// The objects that have been destroyed leave their slots, which the next ones use. Streams do not:
// work and completions refer to them. A thread keeps the slot that it emptied last for its next
// object, and takes and gives up the others under the table's lock: one that makes and destroys
// objects in turn takes the slot's lock alone.
//
// Lock order: a table's mutex is a leaf. Under a slot's, only the ledger's is taken.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"
#include "base/thread_object.h"

namespace openreg {

enum class HandleKind : uint8_t { Stream = 1, Event, Graph, GraphExec, Lease };

template <typename Object>
struct HandleSlot {
  std::atomic<uint64_t> handle{0};  // 0: empty. Changed under the mutex, read at any time
  std::atomic<unsigned> flags{0};   // the owner's; set before the handle, read at any time
  uint32_t index = 0;
  uint32_t generation = 0;  // the next three belong to the table
  HandleSlot* next_empty = nullptr;
  Mutex mutex;
  Object object OPENREG_GUARDED_BY(mutex){};
};

template <typename Object, HandleKind kind>
class HandleTable {
 public:
  using Slot = HandleSlot<Object>;

  // The slot of a handle, null if the value is not that of an object which lives. Any thread.
  Slot* find(uint64_t handle) const {
    if (handle >> kind_shift != static_cast<uint64_t>(kind)) return nullptr;
    const uint64_t index = handle >> index_shift & max_index;
    const Place place = place_of(index);
    Slot* slots = chunks_[place.chunk].load(std::memory_order_acquire);
    if (slots == nullptr) return nullptr;
    Slot& slot = slots[place.offset];
    return slot.handle.load(std::memory_order_acquire) == handle ? &slot : nullptr;
  }

  // Stores an object and returns its handle.
  uint64_t add(Object object, unsigned flags = 0) OPENREG_UNCHECKED_LOCKING {
    Slot& slot = take_empty();
    slot.object = std::move(object);  // no other thread uses an empty slot
    return publish(slot, flags);
  }

  // The same for an object as it is without arguments, which an empty slot has.
  uint64_t make(unsigned flags) { return publish(take_empty(), flags); }

  // Takes an object out and leaves a new one. Returns false if the handle is not that of one.
  bool remove(uint64_t handle, Object* object) {
    Slot* slot = find(handle);
    if (slot == nullptr) return false;
    {
      const Lock lock(slot->mutex);
      if (slot->handle.load(std::memory_order_acquire) != handle) return false;
      slot->handle.store(0, std::memory_order_release);
      replace(*object, std::move(slot->object));
      replace(slot->object, Object{});
    }
    if (++slot->generation > max_generation) return true;
    Spare* spare = find_thread_object<Spare>();
    if (spare != nullptr && spare->slot == nullptr) {
      spare->slot = slot;
    } else {
      give_back(*slot);
    }
    return true;
  }

  // Copies what the handle stands for. Returns false if the handle is not that of an object.
  bool get(uint64_t handle, Object* object) const {
    Slot* slot = find(handle);
    if (slot == nullptr) return false;
    const Lock lock(slot->mutex);
    if (slot->handle.load(std::memory_order_acquire) != handle) return false;
    *object = slot->object;
    return true;
  }

 private:
  static constexpr int index_shift = 4;
  static constexpr int generation_shift = 30;
  static constexpr int kind_shift = 56;
  static constexpr uint64_t max_index = (uint64_t{1} << (generation_shift - index_shift)) - 1;
  static constexpr uint64_t max_generation = (uint64_t{1} << (kind_shift - generation_shift)) - 1;

  // Chunk n has twice as many slots as chunk n - 1.
  static constexpr uint64_t first_chunk_size = 64;
  static constexpr size_t chunk_count = 21;
  static_assert(first_chunk_size * ((uint64_t{1} << chunk_count) - 1) > max_index);

  struct Place {
    size_t chunk;
    size_t offset;
  };

  static Place place_of(uint64_t index) {
    const uint64_t unit = index / first_chunk_size + 1;
    const auto chunk = static_cast<size_t>(std::bit_width(unit) - 1);
    return {chunk, index - first_chunk_size * ((uint64_t{1} << chunk) - 1)};
  }

  // An empty slot that a thread keeps for its next object.
  struct Spare {
    ~Spare() {
      if (slot != nullptr) table->give_back(*slot);
    }
    HandleTable* table = nullptr;
    Slot* slot = nullptr;
  };

  // Cheaper than an assignment, which would look at what the target holds for each member.
  static void replace(Object& object, Object&& by) {
    std::destroy_at(&object);
    std::construct_at(&object, std::move(by));
  }

  void give_back(Slot& slot) {
    const Lock lock(mutex_);
    slot.next_empty = std::exchange(empty_, &slot);
  }

  static uint64_t publish(Slot& slot, unsigned flags) {
    slot.flags.store(flags, std::memory_order_relaxed);
    const uint64_t handle = static_cast<uint64_t>(kind) << kind_shift |
                            uint64_t{slot.generation} << generation_shift |
                            uint64_t{slot.index} << index_shift;
    slot.handle.store(handle, std::memory_order_release);
    return handle;
  }

  Slot& take_empty() {
    Spare& spare = thread_object<Spare>();
    spare.table = this;
    if (spare.slot != nullptr) return *std::exchange(spare.slot, nullptr);
    const Lock lock(mutex_);
    if (empty_ != nullptr) return *std::exchange(empty_, empty_->next_empty);
    if (used_ > max_index) throw std::bad_alloc();
    const Place place = place_of(used_);
    Slot* slots = chunks_[place.chunk].load(std::memory_order_relaxed);
    if (slots == nullptr) {
      slots = new Slot[first_chunk_size << place.chunk];
      chunks_[place.chunk].store(slots, std::memory_order_release);
    }
    slots[place.offset].index = static_cast<uint32_t>(used_++);
    return slots[place.offset];
  }

  std::array<std::atomic<Slot*>, chunk_count> chunks_{};
  Mutex mutex_;
  Slot* empty_ OPENREG_GUARDED_BY(mutex_) = nullptr;
  uint64_t used_ OPENREG_GUARDED_BY(mutex_) = 0;  // slots that were ever given an object
};

// What a function returns that was given a value which is no handle of `kind`, such as "an event".
// "" stands for a function that is not known.
inline orError_t fail_stale(uint64_t handle, const char* function, const char* kind) {
  return fail(orErrorInvalidResourceHandle,
              concat(function, *function == '\0' ? "" : ": ", "expected the handle of ", kind,
                     " that has not been destroyed, got ",
                     reinterpret_cast<void*>(static_cast<uintptr_t>(handle))));
}

// A handle as the C functions have it: a pointer that points at nothing.
template <typename Handle>
uint64_t number_of(Handle handle) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle));
}

template <typename Handle>
Handle to_handle(uint64_t number) {
  return reinterpret_cast<Handle>(static_cast<uintptr_t>(number));
}

}  // namespace openreg
