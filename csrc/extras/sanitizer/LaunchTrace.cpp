#include "csrc/extras/sanitizer/LaunchTrace.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

namespace c10::openreg {

namespace {

bool isSame(const TracedAccess& one, const TracedAccess& other) {
  return one.place == other.place && one.argument == other.argument && one.kind == other.kind;
}

}  // namespace

void LaunchTrace::reset() {
  result_ = Result();
  result_.outside.resize(memories_.size());
  pages_.clear();
  last_page_ = {0, nullptr};
  sites_.assign(1, Site());
  current_sites_.clear();
  program_number_ = 0;
  epoch_ = 0;
  releases_.clear();
  acquired_.assign(1, {});
  known_orders_.clear();
}

void LaunchTrace::begin() noexcept { reset(); }

void LaunchTrace::end(bool is_complete) noexcept {
  result_.is_complete = is_complete;
  for (const Memory& memory : memories_) {
    result_.written.push_back(memory.is_pending ? writtenIn(memory) : std::vector<ByteRuns>());
  }
  {
    const Lock lock(mutex_);
    results_.push_back(std::move(result_));
  }
  reset();
}

std::vector<LaunchTrace::Result> LaunchTrace::take() {
  const Lock lock(mutex_);
  return std::exchange(results_, {});
}

void LaunchTrace::enter(const std::array<uint32_t, 3>& program) {
  if (program_number_ != 0 && program == program_) {
    return;
  }
  program_ = program;
  ++program_number_;
  epoch_ = 0;
  acquired_.emplace_back();
  current_sites_.clear();
  known_orders_.clear();
}

uint32_t LaunchTrace::siteOf(const TracedAccess& access) {
  const int64_t key = (int64_t{access.place} << 32) ^ (int64_t{access.argument} << 2) ^
                      static_cast<int64_t>(access.kind);
  const auto [entry, is_new] = current_sites_.try_emplace(key, sites_.size());
  if (is_new) {
    sites_.push_back({program_number_, epoch_, access});
  }
  return entry->second;
}

// --- The order of programs

void LaunchTrace::noteAtomic(uintptr_t address) {
  Releases& releases = releases_[address];
  std::vector<Acquired>& acquired = acquired_[program_number_];
  const auto [entry, is_new] = releases.insert_or_assign(program_number_, epoch_);
  if (is_new) {
    acquired.push_back({&releases, epoch_});
    known_orders_.clear();
  }
  ++epoch_;
  current_sites_.clear();
}

bool LaunchTrace::isOrdered(const Site& earlier) {
  if (acquired_[program_number_].empty()) {
    return false;
  }
  const uint64_t key = (uint64_t{earlier.program} << 32) | earlier.epoch;
  const auto known = known_orders_.find(key);
  if (known != known_orders_.end()) {
    return known->second;
  }
  return known_orders_[key] = isReached(earlier.program, earlier.epoch);
}

// Whether atomic operations lead from that epoch of a program to the current program.
bool LaunchTrace::isReached(uint32_t program, uint32_t epoch) const {
  // Programs, and the last of their atomic operations before which they count.
  std::vector<std::pair<uint32_t, uint32_t>> open = {
      {program_number_, std::numeric_limits<uint32_t>::max()}};
  std::unordered_map<uint32_t, uint32_t> reached;
  std::set<std::pair<const Releases*, uint32_t>> used;  // up to a program
  while (!open.empty()) {
    const auto [by, until] = open.back();
    open.pop_back();
    for (const Acquired& acquired : acquired_[by]) {
      if (acquired.epoch > until) {
        continue;
      }
      const auto released = acquired.releases->find(program);
      if (released != acquired.releases->end() && released->second >= epoch) {
        return true;
      }
      if (!used.insert({acquired.releases, by}).second) {
        continue;
      }
      for (const auto& [other, last] : *acquired.releases) {
        if (other >= by || other <= program) {
          continue;
        }
        const auto [entry, is_new] = reached.try_emplace(other, last);
        if (is_new || entry->second < last) {
          entry->second = last;
          open.emplace_back(other, last);
        }
      }
    }
  }
  return false;
}

// --- Memory

LaunchTrace::Memory* LaunchTrace::memoryAt(uintptr_t address) {
  for (size_t tried = 0; tried < memories_.size(); ++tried) {
    Memory& memory = memories_[last_memory_];
    if (address >= memory.begin && address < memory.end) {
      return &memory;
    }
    last_memory_ = (last_memory_ + 1) % memories_.size();
  }
  return nullptr;
}

void LaunchTrace::noteOutside(const Memory& memory, const TracedAccess& access) {
  const bool is_write = isWrite(access);
  const ByteRuns runs(access.address, access.nbytes);
  for (const Memory::View& view : memory.views) {
    if ((view.is_written || !is_write) && view.runs.covers(runs)) {
      return;
    }
  }
  Extents& extents = result_.outside[static_cast<size_t>(&memory - memories_.data())][is_write];
  uintptr_t begin = access.address;
  Extent extent{access.address + access.nbytes, access};
  auto next = extents.upper_bound(begin);
  if (next != extents.begin() && std::prev(next)->second.end >= begin) {
    --next;
    begin = next->first;
    extent = {std::max(extent.end, next->second.end), next->second.first};
  }
  while (next != extents.end() && next->first <= extent.end) {
    extent.end = std::max(extent.end, next->second.end);
    next = extents.erase(next);
  }
  if (extents.size() < kMaxExtents) {
    extents.emplace_hint(next, begin, extent);
  } else {
    result_.has_more = true;
  }
}

void LaunchTrace::noteUnwritten(const TracedAccess& access, uintptr_t byte) {
  auto& found = result_.unwritten;
  if (found.size() < kMaxFindings &&
      std::none_of(found.begin(), found.end(),
                   [&](const TracedAccess& one) { return isSame(one, access); })) {
    found.push_back(access);
    found.back().nbytes = access.address + access.nbytes - byte;
    found.back().address = byte;
  }
}

void LaunchTrace::compare(uint32_t earlier, const TracedAccess& access, uintptr_t address) {
  const Site& site = sites_[earlier];
  const bool are_atomic =
      site.access.kind == TracedAccessKind::Atomic && access.kind == TracedAccessKind::Atomic;
  if (earlier == 0 || site.program == program_number_ || are_atomic || isOrdered(site)) {
    return;
  }
  auto& races = result_.races;
  const bool is_known = std::any_of(races.begin(), races.end(), [&](const ProgramRace& race) {
    return isSame(race.earlier, site.access) && isSame(race.later, access);
  });
  if (!is_known && races.size() < kMaxFindings) {
    races.push_back({site.access, access});
    races.back().earlier.address = races.back().later.address = address;
    const size_t nbytes = access.address + access.nbytes - address;
    races.back().earlier.nbytes = races.back().later.nbytes =
        std::min<size_t>(nbytes, site.access.nbytes);
  }
}

void LaunchTrace::useCell(Cell& cell, uint32_t site, const TracedAccess& access,
                          uintptr_t address) {
  compare(cell.write, access, address);
  if (cell.plain_write != cell.write) {
    // An atomic operation of its program came after it. That of another one may come before both.
    compare(cell.plain_write, access, address);
  }
  if (!isWrite(access)) {
    cell.first_read = cell.first_read == 0 ? site : cell.first_read;
    cell.last_read = site;
    return;
  }
  compare(cell.first_read, access, address);
  if (cell.last_read != cell.first_read) {
    compare(cell.last_read, access, address);
  }
  const bool is_atomic = access.kind == TracedAccessKind::Atomic;
  cell = {site, is_atomic ? cell.plain_write : site, 0, 0};
}

void LaunchTrace::access(const TracedAccess& access) noexcept {
  enter(access.program);
  const Memory* const memory = memoryAt(access.address);
  if (memory != nullptr) {
    noteOutside(*memory, access);
  }
  const bool may_lack =
      memory != nullptr && memory->written != nullptr && access.kind != TracedAccessKind::Written &&
      memory->written->lacks(ByteRuns(access.address, access.nbytes), nullptr) == Overlap::Yes;
  const bool is_atomic = access.kind == TracedAccessKind::Atomic;
  const uint32_t site = siteOf(access);
  const uintptr_t end = access.address + access.nbytes;
  for (uintptr_t address = access.address; address < end;) {
    const uintptr_t base = address / kPageBytes * kPageBytes;
    if (last_page_.second == nullptr || last_page_.first != base) {
      last_page_ = {base, &pages_[base]};
    }
    Page& page = *last_page_.second;
    const uintptr_t stop = std::min(end, base + kPageBytes);
    if (page.cellBytes() != 1 && (address % kCellBytes != 0 || stop % kCellBytes != 0)) {
      std::vector<Cell> bytes;
      for (const Cell& cell : page.cells) {
        bytes.insert(bytes.end(), kCellBytes, cell);
      }
      page.cells = std::move(bytes);
    }
    const uintptr_t step = page.cellBytes();
    for (; address < stop; address += step) {
      Cell& cell = page.cells[(address - base) / step];
      uintptr_t lacking = 0;
      if (may_lack && cell.write == 0 &&
          memory->written->lacks(ByteRuns(address, step), &lacking) == Overlap::Yes) {
        noteUnwritten(access, lacking);
      }
      useCell(cell, site, access, address);
    }
  }
  if (is_atomic) {
    noteAtomic(access.address);
  }
}

std::vector<ByteRuns> LaunchTrace::writtenIn(const Memory& memory) const {
  std::vector<ByteRuns> runs;
  uintptr_t begin = 0;
  uintptr_t end = 0;
  const auto flush = [&] {
    if (begin < end) {
      runs.emplace_back(begin, end - begin);
    }
  };
  for (auto page = pages_.lower_bound(memory.begin / kPageBytes * kPageBytes);
       page != pages_.end() && page->first < memory.end; ++page) {
    const uintptr_t step = page->second.cellBytes();
    uintptr_t address = page->first;
    for (const Cell& cell : page->second.cells) {
      if (cell.write != 0 && address >= memory.begin && address < memory.end) {
        if (address != end) {
          flush();
          begin = address;
        }
        end = address + step;
      }
      address += step;
    }
  }
  flush();
  return runs;
}

}  // namespace c10::openreg
