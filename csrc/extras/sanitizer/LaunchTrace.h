// What the programs of one launch access, and the races between them.
//
// Note [Order of programs]
// Programs of a grid run in any order, so two of them race if they use the same byte, one of them
// writes it, and not both do so by atomic operations. Only atomic operations order programs: one
// that uses a byte after another one did, as a lock does, comes after what the other had done
// before. A traced launch runs its programs one after the other, so what happened before an atomic
// operation is known without doubt. Which program is the later one depends on the grid alone.
//
// Threads: the functions of Trace as it says; the others under the sanitizer's lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/ByteRuns.h"
#include "csrc/extras/sanitizer/Shadow.h"
#include "csrc/extras/sanitizer/WrittenBytes.h"
#include "torch_openreg/core/Trace.h"

namespace c10::openreg {

struct ProgramRace {
  TracedAccess earlier;
  TracedAccess later;
};

class LaunchTrace final : public Trace {
 public:
  // Memory that an argument of the launch has.
  struct Memory {
    struct View {
      ByteRuns runs;
      bool is_written;
    };

    std::shared_ptr<Allocation> allocation;
    uintptr_t begin;
    uintptr_t end;
    std::vector<View> views;                // the tensors that the launch was told of
    std::unique_ptr<WrittenBytes> written;  // before the launch; null: all, or not tracked
    bool is_pending = false;                // the allocation awaits what the launch writes
  };

  // Bytes next to each other, and the first access to one of them.
  struct Extent {
    uintptr_t end;
    TracedAccess first;
  };
  using Extents = std::map<uintptr_t, Extent>;  // by the first byte

  // What one run has shown. Vectors by memory have an element for each of memories().
  struct Result {
    bool is_complete = false;
    std::vector<ProgramRace> races{};
    std::vector<TracedAccess> unwritten{};          // reads, with the first such byte
    std::vector<std::array<Extents, 2>> outside{};  // by memory: read and written, in no view
    std::vector<std::vector<ByteRuns>> written{};   // by memory
    bool has_more = false;                          // that there was no room for
  };

  static constexpr size_t kMaxFindings = 16;
  static constexpr size_t kMaxExtents = 1024;

  explicit LaunchTrace(const TracedKernel& kernel) : kernel_(kernel) {}

  const TracedKernel& kernel() const { return kernel_; }

  // Set before the launch is enqueued.
  std::vector<Memory>& memories() { return memories_; }
  std::shared_ptr<const Work> work{};

  void begin() noexcept override;
  void access(const TracedAccess& access) noexcept override;
  void end(bool is_complete) noexcept override;

  // The results of the runs that have ended since the last call.
  std::vector<Result> take();

 private:
  // One line of one program, between two of its atomic operations.
  struct Site {
    uint32_t program;  // their numbers, in the order in which they ran
    uint32_t epoch;    // how many atomic operations the program had made
    TracedAccess access;
  };

  // What was last done with some bytes: numbers of sites, or 0.
  struct Cell {
    uint32_t write = 0;
    uint32_t plain_write = 0;  // the last one that is not atomic
    uint32_t first_read = 0;   // since the write
    uint32_t last_read = 0;
  };

  static constexpr uintptr_t kPageBytes = 1024;
  static constexpr uintptr_t kCellBytes = 4;

  // A cell for every four bytes, or for each once an access has needed that.
  struct Page {
    std::vector<Cell> cells = std::vector<Cell>(kPageBytes / kCellBytes);
    uintptr_t cellBytes() const { return kPageBytes / cells.size(); }
  };

  // Bytes that atomic operations use: for each program, its last one, as its number there.
  using Releases = std::unordered_map<uint32_t, uint32_t>;

  // The first time that a program has used such bytes.
  struct Acquired {
    const Releases* releases;
    uint32_t epoch;
  };

  static bool isWrite(const TracedAccess& access) { return access.kind != TracedAccessKind::Read; }

  void enter(const std::array<uint32_t, 3>& program);
  uint32_t siteOf(const TracedAccess& access);
  void noteAtomic(uintptr_t address);
  Memory* memoryAt(uintptr_t address);
  void noteOutside(const Memory& memory, const TracedAccess& access);
  void noteUnwritten(const TracedAccess& access, uintptr_t byte);
  void compare(uint32_t earlier, const TracedAccess& access, uintptr_t address);
  bool isOrdered(const Site& earlier);
  bool isReached(uint32_t program, uint32_t epoch) const;
  void useCell(Cell& cell, uint32_t site, const TracedAccess& access, uintptr_t address);
  std::vector<ByteRuns> writtenIn(const Memory& memory) const;
  void reset();

  const TracedKernel& kernel_;
  std::vector<Memory> memories_{};

  // Of the run, by the worker alone.
  Result result_{};
  std::map<uintptr_t, Page> pages_{};
  std::pair<uintptr_t, Page*> last_page_{0, nullptr};
  size_t last_memory_ = 0;
  std::vector<Site> sites_{};
  std::unordered_map<int64_t, uint32_t> current_sites_{};  // of the program's epoch
  std::array<uint32_t, 3> program_{};
  uint32_t program_number_ = 0;
  uint32_t epoch_ = 0;
  std::unordered_map<uintptr_t, Releases> releases_{};
  std::vector<std::vector<Acquired>> acquired_{};      // by program
  std::unordered_map<uint64_t, bool> known_orders_{};  // of sites with the program's next work

  Mutex mutex_;
  std::vector<Result> results_ OPENREG_GUARDED_BY(mutex_){};
};

}  // namespace c10::openreg
