#include "csrc/extras/sanitizer/AccessSet.h"

#include <bit>

#include "csrc/core/Mutex.h"

namespace c10::openreg {
namespace {

struct Less {
  using is_transparent = void;
  bool operator()(IntArrayRef a, IntArrayRef b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
};

struct SharedSizes {
  Mutex mutex;
  std::set<std::vector<int64_t>, Less> all OPENREG_GUARDED_BY(mutex);
};

constexpr size_t kMaxSizes = size_t(1) << 16;

}  // namespace

Sizes shareSizes(IntArrayRef sizes) {
  static auto* const shared = new SharedSizes;
  const Lock lock(shared->mutex);
  const auto found = shared->all.find(sizes);
  if (found != shared->all.end()) {
    return &*found;
  }
  return shared->all.size() < kMaxSizes ? &*shared->all.insert(sizes.vec()).first : nullptr;
}

bool AccessSet::add(Access access) {
  const bool is_full = size() >= max_accesses_;
  if (is_full) {
    forgetOlderHalf();
  }
  if (sorted_ == nullptr && listed_.size() < kMaxListed) {
    listed_.push_back(std::move(access));
    return is_full;
  }
  if (sorted_ == nullptr) {
    sorted_ = std::make_unique<Rows>();
    sorted_count_ = 0;
    for (Access& one : std::exchange(listed_, {})) {
      sort(std::move(one));
    }
  }
  sort(std::move(access));
  return is_full;
}

AccessSet::Near AccessSet::near(const ByteRuns& runs) const {
  Near found;
  if (sorted_ == nullptr) {
    for (const Access& access : listed_) {
      found.push_back(&access);
    }
    return found;
  }
  for (const auto& [magnitude, row] : *sorted_) {
    const auto end = row.lower_bound(runs.end());
    for (auto one = row.upper_bound(firstBegin(magnitude, runs)); one != end; ++one) {
      found.push_back(&*one);
    }
  }
  return found;
}

void AccessSet::sort(Access access) {
  const uintptr_t length = std::max<uintptr_t>(access.runs.end() - access.runs.begin(), 1);
  (*sorted_)[std::bit_width(length) - 1].insert(std::move(access));
  ++sorted_count_;
}

void AccessSet::forgetOlderHalf() {
  std::vector<uint64_t> serials;
  forEach([&](const Access& access) { serials.push_back(access.work->serial); });
  const auto middle = serials.begin() + static_cast<ptrdiff_t>(serials.size() / 2);
  std::nth_element(serials.begin(), middle, serials.end());
  const uint64_t oldest_kept = *middle;
  const auto is_older = [&](const Access& access) { return access.work->serial < oldest_kept; };
  std::erase_if(listed_, is_older);
  if (sorted_ == nullptr) {
    return;
  }
  sorted_count_ = 0;
  for (auto& [magnitude, row] : *sorted_) {
    std::erase_if(row, is_older);
    sorted_count_ += row.size();
  }
}

size_t heapSize(size_t nbytes) {
  constexpr size_t kHeader = 8;
  constexpr size_t kUnit = 16;
  return nbytes == 0 ? 0 : (nbytes + kHeader + kUnit - 1) / kUnit * kUnit;
}

size_t AccessSet::memory() const {
  size_t bytes = heapSize(listed_.capacity() * sizeof(Access));
  if (sorted_ != nullptr) {
    bytes += sorted_count_ * heapSize(sizeof(Row::value_type) + 4 * sizeof(void*));
  }
  forEach([&](const Access& access) { bytes += heapSize(access.runs.memory()); });
  return bytes;
}

}  // namespace c10::openreg
