#include "csrc/extras/sanitizer/ByteRuns.h"

#include <algorithm>

namespace c10::openreg {

ByteRuns::ByteRuns(uintptr_t begin, IntArrayRef sizes, IntArrayRef strides, size_t itemsize)
    : begin_(begin), end_(begin), run_(itemsize) {
  c10::SmallVector<Step, 8> steps;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 0) {
      run_ = 0;
      return;
    }
    if (sizes[dim] > 1 && strides[dim] != 0) {
      steps.push_back(
          {static_cast<size_t>(sizes[dim]), static_cast<size_t>(strides[dim]) * itemsize});
    }
  }
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.stride < b.stride; });
  c10::SmallVector<Step, 2> merged;
  for (const Step& step : steps) {
    if (merged.empty() && step.stride <= run_) {
      run_ += (step.count - 1) * step.stride;
    } else if (!merged.empty() && step.stride == merged.back().stride * merged.back().count) {
      merged.back().count *= step.count;
    } else {
      merged.push_back(step);
    }
  }
  steps_ = Steps(merged);
  end_ = begin_ + run_;
  for (const Step& step : merged) {
    end_ += (step.count - 1) * step.stride;
  }
}

size_t ByteRuns::runCount() const {
  size_t count = 1;
  for (const Step& step : steps_.all()) {
    count *= step.count;
  }
  return count;
}

// The begins of the runs, in order.
ByteRuns::Begins ByteRuns::begins() const {
  Begins begins{begin_};
  for (const Step& step : steps_.all()) {
    const size_t known = begins.size();
    for (size_t i = 1; i < step.count; ++i) {
      for (size_t j = 0; j < known; ++j) {
        begins.push_back(begins[j] + i * step.stride);
      }
    }
  }
  std::sort(begins.begin(), begins.end());
  return begins;
}

Overlap ByteRuns::overlap(const ByteRuns& other) const {
  if (isEmpty() || other.isEmpty() || end_ <= other.begin_ || other.end_ <= begin_) {
    return Overlap::No;
  }
  if ((isDense() && other.isDense()) || *this == other) {
    return Overlap::Yes;
  }
  if (runCount() > kMaxRuns || other.runCount() > kMaxRuns) {
    return Overlap::Undecided;
  }
  const Begins own = begins();
  const Begins others = other.begins();
  const auto* next = others.begin();
  for (const uintptr_t begin : own) {
    while (next != others.end() && *next + other.run_ <= begin) {
      ++next;
    }
    if (next == others.end()) {
      return Overlap::No;
    }
    if (*next < begin + run_) {
      return Overlap::Yes;
    }
  }
  return Overlap::No;
}

bool ByteRuns::contains(uintptr_t address) const {
  return address >= begin_ && address < end_ &&
         containsOffset(address - begin_, steps_.all().size());
}

// Whether the offset is in a run of the tensor that the first `step_count` steps describe.
bool ByteRuns::containsOffset(size_t offset, size_t step_count) const {
  if (step_count == 0) {
    return offset < run_;
  }
  const Step& step = steps_.all()[step_count - 1];
  // Runs may overlap, so runs before the last candidate must be checked as well.
  for (size_t i = std::min(offset / step.stride, step.count - 1) + 1; i > 0; --i) {
    if (containsOffset(offset - (i - 1) * step.stride, step_count - 1)) {
      return true;
    }
  }
  return false;
}

bool ByteRuns::covers(const ByteRuns& other) const {
  return other.isEmpty() || (isDense() && begin_ <= other.begin_ && other.end_ <= end_) ||
         *this == other;
}

}  // namespace c10::openreg
