#include <openreg/range.h>

#include <atomic>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "base/os.h"
#include "base/process.h"
#include "base/thread_object.h"
#include "base/trace.h"

namespace openreg {
namespace {

// An open range. Its record has correlation id 0 if tracing was off when it was opened.
using OpenRange = orActivityRecord;

struct OpenRanges {
  std::vector<OpenRange> pushed;
};

std::vector<OpenRange>& pushed_ranges() { return thread_object<OpenRanges>().pushed; }

// Names of ranges and marks. Records point at them, and may be consumed at any later time.
struct Names {
  Mutex mutex;  // a leaf
  std::unordered_set<std::string> all OPENREG_GUARDED_BY(mutex);
};

Names& names() {
  static Names* names = new Names;
  return *names;
}

const char* keep_name(const char* name) {
  const Lock lock(names().mutex);
  return names().all.emplace(name).first->c_str();
}

struct StartedRanges {
  Mutex mutex;  // a leaf
  std::unordered_map<uint64_t, OpenRange> open OPENREG_GUARDED_BY(mutex);
  uint64_t last_id OPENREG_GUARDED_BY(mutex) = 0;
};

StartedRanges& started_ranges() {
  static StartedRanges* ranges = new StartedRanges;
  return *ranges;
}

OpenRange open_range(orActivityKind kind, const char* name) {
  if (!trace::is_on()) return {};
  return trace::host_record(kind, keep_name(name));
}

void close_range(OpenRange range) {
  if (range.correlation_id == 0) return;
  range.end_ns = os::now_ns();
  trace::keep(range);
}

orError_t check_name(const char* name, const char* function) {
  if (name != nullptr) return orSuccess;
  return fail(orErrorInvalidValue, concat(function, ": name is null"));
}

void store(int* depth) {
  if (depth != nullptr) *depth = static_cast<int>(pushed_ranges().size());
}

void lock_ranges() OPENREG_UNCHECKED_LOCKING {
  names().mutex.lock();
  started_ranges().mutex.lock();
}

void unlock_ranges() OPENREG_UNCHECKED_LOCKING {
  started_ranges().mutex.unlock();
  names().mutex.unlock();
}

const ForkLocks range_fork_locks(lock_ranges, unlock_ranges);

}  // namespace
}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orRangePush(const char* name, int* depth) {
  return guarded([&] {
    if (const orError_t error = check_name(name, "orRangePush")) return error;
    std::vector<OpenRange>& ranges = pushed_ranges();
    ranges.push_back(open_range(orActivityRange, name));
    if (depth != nullptr) *depth = static_cast<int>(ranges.size()) - 1;
    return orSuccess;
  });
}

orError_t orRangePop(int* depth) {
  return guarded([&] {
    std::vector<OpenRange>& ranges = pushed_ranges();
    if (ranges.empty()) {
      return fail(orErrorInvalidValue, "orRangePop: this thread has no open range");
    }
    close_range(ranges.back());
    ranges.pop_back();
    store(depth);
    return orSuccess;
  });
}

orError_t orRangeStart(const char* name, uint64_t* id) {
  return guarded([&] {
    if (const orError_t error = check_name(name, "orRangeStart")) return error;
    if (id == nullptr) return fail(orErrorInvalidValue, "orRangeStart: id is null");
    const OpenRange range = open_range(orActivityRange, name);
    StartedRanges& ranges = started_ranges();
    const Lock lock(ranges.mutex);
    ranges.open.emplace(ranges.last_id + 1, range);
    *id = ++ranges.last_id;
    return orSuccess;
  });
}

orError_t orRangeEnd(uint64_t id) {
  return guarded([&] {
    StartedRanges& ranges = started_ranges();
    OpenRange range;
    {
      const Lock lock(ranges.mutex);
      const auto found = ranges.open.find(id);
      if (found == ranges.open.end()) {
        return fail(orErrorInvalidValue, concat("orRangeEnd: no open range has id ", id));
      }
      range = found->second;
      ranges.open.erase(found);
    }
    close_range(range);
    return orSuccess;
  });
}

orError_t orMark(const char* name) {
  return guarded([&] {
    if (const orError_t error = check_name(name, "orMark")) return error;
    OpenRange mark = open_range(orActivityMark, name);
    mark.end_ns = mark.start_ns;
    if (mark.correlation_id != 0) trace::keep(mark);
    return orSuccess;
  });
}

}  // extern "C"
