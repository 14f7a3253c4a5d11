#include "csrc/extras/profiler/Annotations.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace at::openreg {

AnnotationIndex::AnnotationIndex(std::vector<Annotation> annotations)
    : annotations_(std::move(annotations)) {
  std::stable_sort(
      annotations_.begin(), annotations_.end(), [](const Annotation& one, const Annotation& other) {
        return std::pair(one.thread_id, one.start_ns) < std::pair(other.thread_id, other.start_ns);
      });
  parents_.reserve(annotations_.size());
  for (size_t i = 0; i < annotations_.size(); ++i) {
    const Annotation& one = annotations_[i];
    auto [thread, is_first] = threads_.try_emplace(one.thread_id, i, i);
    thread->second.second = i + 1;
    size_t parent = is_first ? kNone : i - 1;
    while (parent != kNone && annotations_[parent].end_ns < one.start_ns) {
      parent = parents_[parent];
    }
    parents_.push_back(parent);
  }
}

std::vector<size_t> AnnotationIndex::openAt(int thread_id, int64_t time_ns) const {
  std::vector<size_t> open;
  const auto thread = threads_.find(thread_id);
  if (thread == threads_.end()) {
    return open;
  }
  const auto begin = annotations_.begin() + static_cast<std::ptrdiff_t>(thread->second.first);
  const auto end = annotations_.begin() + static_cast<std::ptrdiff_t>(thread->second.second);
  const auto next = std::upper_bound(
      begin, end, time_ns, [](int64_t time, const Annotation& one) { return time < one.start_ns; });
  size_t index = next == begin ? kNone : static_cast<size_t>(next - annotations_.begin()) - 1;
  while (index != kNone) {
    if (annotations_[index].end_ns >= time_ns) {
      open.push_back(index);
    }
    index = parents_[index];
  }
  return open;
}

}  // namespace at::openreg
