// Annotations: named time ranges on host threads, and a search for those open at a given time.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

namespace at::openreg {

struct Annotation {
  static constexpr int64_t kOpen = std::numeric_limits<int64_t>::max();

  int thread_id = 0;
  int64_t start_ns = 0;  // times are the runtime's
  int64_t end_ns = kOpen;
  uint64_t torch_id = 0;  // torch's user correlation id; 0 for a range of the runtime
  std::string name;       // of a range of the runtime's
};

// Finds annotations by thread and time.
class AnnotationIndex {
 public:
  explicit AnnotationIndex(std::vector<Annotation> annotations);

  const Annotation& operator[](size_t index) const { return annotations_[index]; }

  // The annotations that were open on the thread at that time, innermost first.
  std::vector<size_t> openAt(int thread_id, int64_t time_ns) const;

 private:
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  std::vector<Annotation> annotations_;  // by thread, then start
  // Parallel to it: the annotation that was open when each one began. The annotations that are open
  // at some time are on the path of parents from the one that began last, which may also have ended
  // ones.
  std::vector<size_t> parents_;
  std::unordered_map<int, std::pair<size_t, size_t>> threads_;  // begin and end of a thread's part
};

}  // namespace at::openreg
