#include "extras/watch.h"

#include <atomic>
#include <map>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"
#include "base/os.h"
#include "base/process.h"
#include "base/setting.h"
#include "extras/fault.h"
#include "extras/os_extras.h"
#include "memory/arena.h"
#include "memory/extra_memory.h"
#include "queue/worker.h"

namespace openreg {
namespace {

using os::Protection;

// What a page is used for.
struct Page {
  uint32_t reads = 0;    // watches of bytes that a stream reads
  uint32_t writes = 0;   // that it writes
  bool is_open = false;  // by a fault at other bytes
};

// Zeros are a page without watches, so that fresh memory holds valid ones.
Protection protection_of(const Page& page) {
  if (page.is_open || (page.reads == 0 && page.writes == 0)) return Protection::ReadWrite;
  return page.writes > 0 ? Protection::None : Protection::Read;
}

struct Watch {
  uintptr_t begin;
  uintptr_t end;
  bool is_written;
  orWatchObserver observer;
  void* context;
  bool is_over = false;  // its pages do not count it any more

  bool contains(uintptr_t address) const { return address >= begin && address < end; }
};

// All watchable memory of the process: one file, as a machine may have fewer file descriptors than
// a program has allocations. Never destroyed.
class WatchableMemory {
 public:
  // Null if the operating system does not give it.
  static WatchableMemory* create();

  uintptr_t allocate(size_t size) { return size > capacity_ ? 0 : arena_.allocate(round_up(size)); }

  void release(uintptr_t address, size_t size) {
    {
      const Lock lock(mutex_);
      for (auto& [number, watch] : watches_) {
        if (watch.begin < address + size && watch.end > address) end(watch);
      }
    }
    arena_.release(address);
  }

  bool contains(uintptr_t address) const { return address - base_ < capacity_; }
  bool contains(uintptr_t address, size_t size) const {
    return contains(address) && size <= capacity_ - (address - base_);
  }
  bool is_kernel_address(uintptr_t address) const {
    const uintptr_t offset = offset_;
    return offset != 0 && contains(address - offset);
  }
  uintptr_t offset() const { return offset_; }

  // The number of the new watch, 0 if there is no room for it.
  uint64_t add(Watch watch) {
    const Lock lock(mutex_);
    const auto added = watches_.emplace(last_number_ + 1, watch).first;  // first, as it may throw
    const bool is_protected = change(watch.begin, watch.end, [&watch](Page& page) {
      ++(watch.is_written ? page.writes : page.reads);
      page.is_open = false;
    });
    if (!is_protected) {
      end(added->second);
      watches_.erase(added);
      ++lost_;
      return 0;
    }
    return ++last_number_;
  }

  bool remove(uint64_t number) {
    const Lock lock(mutex_);
    const auto found = watches_.find(number);
    if (found == watches_.end()) return false;
    end(found->second);
    watches_.erase(found);
    return true;
  }

  void rearm() {
    const Lock lock(mutex_);
    for (auto& [number, watch] : watches_) {
      if (watch.is_over) continue;
      const bool is_protected =
          change(watch.begin, watch.end, [](Page& page) { page.is_open = false; });
      if (!is_protected) lose_all();
    }
  }

  bool resolve(const os::Fault& fault) {
    const Lock lock(mutex_);
    if (is_inherited_) return false;
    const Protection protection = protection_of(page_at(fault.address));
    const bool is_write =
        fault.access == os::FaultAccess::Write ||
        (fault.access == os::FaultAccess::Unknown && protection == Protection::Read);
    // A kernel that does not know of the second address is not the host.
    if (Worker::current_stream() == nullptr) {
      for (auto& [number, watch] : watches_) {
        const bool is_meant =
            !watch.is_over && watch.contains(fault.address) && (is_write || watch.is_written) &&
            watch.observer(watch.context, reinterpret_cast<const void*>(fault.address),
                           static_cast<int>(is_write)) != 0;
        if (is_meant) end(watch);
      }
    }
    Page& page = page_at(fault.address);
    const Protection rest = protection_of(page);
    if (rest == Protection::None || (rest == Protection::Read && is_write)) {
      page.is_open = true;
      ++beside_;
    }
    // In any case, as another thread may have changed what is written in the table meanwhile.
    const uintptr_t begin = round_down(fault.address);
    if (!protect(begin, begin + os::page_size(), protection_of(page))) lose_all();
    return true;
  }

  orWatchCounts counts() {
    const Lock lock(mutex_);
    return {watches_.size(), beside_, lost_};
  }

  // --- Around fork(); clang cannot follow a lock from one function to another.

  void lock() OPENREG_UNCHECKED_LOCKING { mutex_.lock(); }
  void unlock() OPENREG_UNCHECKED_LOCKING { mutex_.unlock(); }

  // In the child, with the lock.
  void become_inherited() OPENREG_UNCHECKED_LOCKING {
    os::map_private_copy(reinterpret_cast<void*>(base_), capacity_, file_);
    is_inherited_ = true;
    offset_ = 0;
  }

  bool is_inherited() {
    const Lock lock(mutex_);
    return is_inherited_;
  }

 private:
  WatchableMemory(uintptr_t base, size_t capacity, int file, Page* pages)
      : base_(base),
        capacity_(capacity),
        file_(file),
        offset_(capacity),
        arena_(base, static_cast<ptrdiff_t>(capacity), capacity, capacity),
        pages_(pages) {}

  static uintptr_t round_down(uintptr_t address) { return address - address % os::page_size(); }
  static uintptr_t round_up(uintptr_t size) { return round_down(size + os::page_size() - 1); }

  Page& page_at(uintptr_t address) OPENREG_REQUIRES(mutex_) {
    return pages_[(address - base_) / os::page_size()];
  }

  static bool protect(uintptr_t begin, uintptr_t end, Protection protection) {
    return begin == end || os::protect(reinterpret_cast<void*>(begin), end - begin, protection);
  }

  // Changes what each page of a range is used for, and what the host may do with it. Returns false
  // if the operating system refused that somewhere.
  template <typename Change>
  bool change(uintptr_t begin, uintptr_t end, const Change& change) OPENREG_REQUIRES(mutex_) {
    bool is_done = true;
    uintptr_t run_begin = round_down(begin);  // pages that still have to be protected, all alike
    uintptr_t run_end = run_begin;
    Protection run_protection = Protection::ReadWrite;
    for (uintptr_t at = run_begin; at < end; at += os::page_size()) {
      Page& page = page_at(at);
      const Protection before = protection_of(page);
      change(page);
      const Protection after = protection_of(page);
      if (before == after) continue;
      if (at != run_end || after != run_protection) {
        is_done = protect(run_begin, run_end, run_protection) && is_done;
        run_begin = at;
        run_protection = after;
      }
      run_end = at + os::page_size();
    }
    return protect(run_begin, run_end, run_protection) && is_done;
  }

  void end(Watch& watch) OPENREG_REQUIRES(mutex_) {
    if (watch.is_over) return;
    watch.is_over = true;
    const bool is_done = change(watch.begin, watch.end, [&watch](Page& page) {
      --(watch.is_written ? page.writes : page.reads);
    });
    if (!is_done) lose_all();
  }

  // Opens all pages in one call, which needs no more memory mappings. Otherwise a host access to a
  // page that cannot be opened would fault for ever.
  void lose_all() OPENREG_REQUIRES(mutex_) {
    protect(base_, base_ + capacity_, Protection::ReadWrite);
    for (auto& [number, watch] : watches_) {
      if (watch.is_over) continue;
      watch.is_over = true;
      ++lost_;
      for (uintptr_t at = round_down(watch.begin); at < watch.end; at += os::page_size()) {
        page_at(at) = Page{};
      }
    }
  }

  const uintptr_t base_;
  const size_t capacity_;
  const int file_;
  std::atomic<uintptr_t> offset_;  // 0 in a child
  Arena arena_;

  Mutex mutex_;
  Page* const pages_ OPENREG_GUARDED_BY(mutex_);
  std::map<uint64_t, Watch> watches_ OPENREG_GUARDED_BY(mutex_);
  uint64_t last_number_ OPENREG_GUARDED_BY(mutex_) = 0;
  uint64_t beside_ OPENREG_GUARDED_BY(mutex_) = 0;
  uint64_t lost_ OPENREG_GUARDED_BY(mutex_) = 0;
  bool is_inherited_ OPENREG_GUARDED_BY(mutex_) = false;
};

std::atomic<bool> is_on{false};
std::atomic<WatchableMemory*> the_memory{nullptr};

WatchableMemory* memory() { return the_memory.load(std::memory_order_acquire); }

// The memory that the address lies in, null if it is not watchable.
WatchableMemory* memory_of(uintptr_t address) {
  WatchableMemory* found = memory();
  return found != nullptr && found->contains(address) ? found : nullptr;
}

WatchableMemory* WatchableMemory::create() {
  const size_t capacity = round_down(os::physical_memory());
  const int file = os::create_memory_file("openreg-pinned", capacity);
  if (file < 0) return nullptr;
  const size_t table_size = capacity / os::page_size() * sizeof(Page);
  void* table = os::map_memory(table_size);
  void* base = os::reserve_addresses(2 * capacity);
  const auto address = reinterpret_cast<uintptr_t>(base);
  if (table != nullptr && base != nullptr &&
      os::map_memory_file(base, capacity, file, /*is_inherited=*/true) &&
      os::map_memory_file(reinterpret_cast<void*>(address + capacity), capacity, file)) {
    try {
      return new WatchableMemory(address, capacity, file, static_cast<Page*>(table));
    } catch (const std::bad_alloc&) {
      // There is none to be had.
    }
  }
  if (base != nullptr) os::unmap(base, 2 * capacity);
  if (table != nullptr) os::unmap(table, table_size);
  os::close_file(file);
  return nullptr;
}

bool watch_forks() {
  return os::at_fork([] { memory()->lock(); }, [] { memory()->unlock(); },
                     [] {
                       memory()->become_inherited();
                       memory()->unlock();
                     });
}

// Makes the memory, the first time. Null if there is none to be had.
WatchableMemory* make_memory() {
  static constinit Mutex mutex;
  static bool has_tried = false;
  const Lock lock(mutex);
  if (!std::exchange(has_tried, true) && settings().has_memory_protection &&
      install_fault_handler()) {
    the_memory.store(WatchableMemory::create(), std::memory_order_release);
    // Afterwards, so that a fork finds the memory. Without it a child could not use it.
    if (memory() != nullptr && !watch_forks()) the_memory.store(nullptr);
  }
  WatchableMemory* made = memory();
  return made == nullptr || made->is_inherited() ? nullptr : made;
}

uintptr_t allocate_watchable(size_t size) {
  if (!is_on.load(std::memory_order_relaxed)) return 0;
  WatchableMemory* found = make_memory();
  return found == nullptr ? 0 : found->allocate(size);
}

bool release_watchable(uintptr_t address, size_t size) {
  WatchableMemory* found = memory_of(address);
  if (found == nullptr) return false;
  if (!found->is_inherited()) found->release(address, size);
  return true;
}

uintptr_t watchable_offset(uintptr_t address) {
  const WatchableMemory* found = memory_of(address);
  return found == nullptr ? 0 : found->offset();
}

bool is_watchable_kernel_address(uintptr_t address) {
  const WatchableMemory* found = memory();
  return found != nullptr && found->is_kernel_address(address);
}

[[maybe_unused]] const bool is_watch_installed = [] {
  watchable_memory = {
      .allocate = allocate_watchable,
      .release = release_watchable,
      .kernel_offset = watchable_offset,
      .is_kernel_address = is_watchable_kernel_address,
  };
  return true;
}();

}  // namespace

bool resolve_watched_fault(const os::Fault& fault) {
  WatchableMemory* found = memory_of(fault.address);
  return found != nullptr && found->resolve(fault);
}

}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orWatchStart(void) {
  return guarded([] {
    if (const orError_t error = check_not_forked()) return error;
    if (const orError_t error = check_settings()) return error;
    is_on.store(true);
    return orSuccess;
  });
}

orError_t orWatchStop(void) {
  return guarded([] {
    if (const orError_t error = check_not_forked()) return error;
    is_on.store(false);
    return orSuccess;
  });
}

orError_t orWatchAdd(unsigned long long* number, const void* pointer, size_t size, int is_written,
                     orWatchObserver observer, void* context) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    if (number == nullptr || pointer == nullptr || observer == nullptr || size == 0) {
      return fail(
          orErrorInvalidValue,
          "orWatchAdd: expected pointers and a size above 0, got a null pointer or the size 0");
    }
    const auto begin = reinterpret_cast<uintptr_t>(pointer);
    WatchableMemory* found = memory_of(begin);
    *number = 0;
    if (found == nullptr || !found->contains(begin, size) || found->is_inherited() ||
        !install_fault_handler()) {
      return orSuccess;
    }
    *number = found->add({begin, begin + size, is_written != 0, observer, context});
    return orSuccess;
  });
}

orError_t orWatchRemove(unsigned long long number) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    if (memory() != nullptr && memory()->remove(number)) return orSuccess;
    return fail(orErrorInvalidValue, concat("orWatchRemove: there is no watch ", number));
  });
}

orError_t orWatchRearm(void) {
  return guarded([] {
    if (const orError_t error = check_not_forked()) return error;
    if (memory() != nullptr) memory()->rearm();
    return orSuccess;
  });
}

orError_t orWatchGetCounts(orWatchCounts* counts) {
  return guarded_result("orWatchGetCounts", counts, [&] {
    if (const orError_t error = check_not_forked()) return error;
    *counts = memory() == nullptr ? orWatchCounts{} : memory()->counts();
    return orSuccess;
  });
}

}  // extern "C"
