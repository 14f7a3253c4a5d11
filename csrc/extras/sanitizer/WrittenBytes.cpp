#include "csrc/extras/sanitizer/WrittenBytes.h"

#include <algorithm>
#include <iterator>

namespace c10::openreg {

bool WrittenBytes::add(const ByteRuns& runs) {
  if (is_whole_ || runs.isEmpty()) {
    return false;
  }
  bool is_rough = !runs.forEachRun([&](uintptr_t begin, uintptr_t end) { add(begin, end); });
  if (is_rough) {
    add(runs.begin(), runs.end());
  }
  if (ranges_.size() > kMaxRanges) {
    is_rough = true;
    is_whole_ = true;
  }
  const auto first = ranges_.begin();
  if (is_whole_ || (first->first <= begin_ && end_ <= first->second)) {
    is_whole_ = true;
    ranges_.clear();
  }
  return is_rough;
}

void WrittenBytes::add(uintptr_t begin, uintptr_t end) {
  auto next = ranges_.upper_bound(begin);
  if (next != ranges_.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
  }
  while (next != ranges_.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = ranges_.erase(next);
  }
  ranges_.emplace_hint(next, begin, end);
}

bool WrittenBytes::lacks(uintptr_t begin, uintptr_t end, uintptr_t* first) const {
  const auto after = ranges_.upper_bound(begin);
  const uintptr_t known =
      after == ranges_.begin() ? begin : std::max(begin, std::prev(after)->second);
  if (known < end && first != nullptr) {
    *first = known;
  }
  return known < end;
}

Overlap WrittenBytes::lacks(const ByteRuns& runs, uintptr_t* first) const {
  if (is_whole_ || runs.isEmpty() || !lacks(runs.begin(), runs.end(), first)) {
    return Overlap::No;
  }
  bool is_lacking = false;
  const bool is_decided = runs.forEachRun(
      [&](uintptr_t begin, uintptr_t end) { is_lacking = is_lacking || lacks(begin, end, first); });
  if (is_decided) {
    return is_lacking ? Overlap::Yes : Overlap::No;
  }
  // Too many runs to check: certain only if nothing in between is written.
  const auto next = ranges_.lower_bound(runs.begin());
  const bool is_untouched = (next == ranges_.end() || next->first >= runs.end()) &&
                            (next == ranges_.begin() || std::prev(next)->second <= runs.begin());
  return is_untouched ? Overlap::Yes : Overlap::Undecided;
}

}  // namespace c10::openreg
