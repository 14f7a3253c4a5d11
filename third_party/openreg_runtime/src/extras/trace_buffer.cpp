// Buffers of activity records, and the functions of openreg/trace.h. See base/trace.h.
#include <openreg/trace.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "base/os.h"
#include "base/process.h"
#include "base/thread_object.h"
#include "base/trace.h"
#include "queue/device.h"
#include "queue/stream.h"

namespace openreg::trace {

namespace {

struct Buffer {
  Mutex mutex;  // a leaf
  std::vector<orActivityRecord> records OPENREG_GUARDED_BY(mutex);
};

// All buffers ever made. A thread that ends leaves its buffer to the next thread.
struct Buffers {
  Mutex mutex;  // before a buffer's
  std::vector<Buffer*> all OPENREG_GUARDED_BY(mutex);
  std::vector<Buffer*> unused OPENREG_GUARDED_BY(mutex);
};

Buffers& buffers() {
  static Buffers* buffers = new Buffers;
  return *buffers;
}

class BufferLease {
 public:
  BufferLease() {
    Buffers& shared = buffers();
    const Lock lock(shared.mutex);
    if (shared.unused.empty()) {
      shared.unused.reserve(shared.all.size() + 1);  // what the destructors of all leases need
      shared.all.push_back(nullptr);
      try {
        shared.all.back() = new Buffer;
      } catch (const std::bad_alloc&) {
        shared.all.pop_back();
        throw;
      }
      buffer_ = shared.all.back();
    } else {
      buffer_ = shared.unused.back();
      shared.unused.pop_back();
    }
  }

  ~BufferLease() {
    Buffers& shared = buffers();
    const Lock lock(shared.mutex);
    shared.unused.push_back(buffer_);
  }

  void add(const orActivityRecord& record) {
    const Lock lock(buffer_->mutex);
    buffer_->records.push_back(record);
  }

 private:
  Buffer* buffer_;
};

// A child may record.
void lock_buffers() OPENREG_UNCHECKED_LOCKING {
  buffers().mutex.lock();
  for (Buffer* buffer : buffers().all) buffer->mutex.lock();
}

void unlock_buffers() OPENREG_UNCHECKED_LOCKING {
  for (Buffer* buffer : buffers().all) buffer->mutex.unlock();
  buffers().mutex.unlock();
}

const ForkLocks buffer_fork_locks(lock_buffers, unlock_buffers);

// What one buffer held, in order of end_ns, and how much of that has been handed on.
struct Taken {
  std::vector<orActivityRecord> records;
  size_t next = 0;

  bool is_over() const { return next == records.size(); }
  int64_t time_ns() const { return records[next].end_ns; }
};

// Takes the buffers' memory, too: a thread that records no more keeps none. Makes room in `order`
// for a pointer to each.
std::vector<Taken> take_all(std::vector<Taken*>* order) {
  std::vector<Taken> taken;
  Buffers& shared = buffers();
  const Lock lock(shared.mutex);
  taken.reserve(shared.all.size());
  order->reserve(shared.all.size());
  // From here on nothing throws.
  for (Buffer* buffer : shared.all) {
    const Lock buffer_lock(buffer->mutex);
    if (!buffer->records.empty()) taken.push_back({.records = std::exchange(buffer->records, {})});
  }
  return taken;
}

void keep_in_buffer(const orActivityRecord& record) {
  try {
    thread_object<BufferLease>().add(record);
  } catch (const std::bad_alloc&) {
    // The record is lost; the work it is about is not.
  }
}

[[maybe_unused]] const bool is_tracer_installed = [] {
  keep_function = keep_in_buffer;
  return true;
}();

}  // namespace

}  // namespace openreg::trace

using namespace openreg;

extern "C" {

orError_t orTraceStart(unsigned kinds) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    if (kinds == 0 || (kinds & ~unsigned{orActivityAll}) != 0) {
      return fail(orErrorInvalidValue,
                  concat("orTraceStart: expected a sum of orActivityKind, got ", kinds));
    }
    trace::start(kinds);
    return orSuccess;
  });
}

orError_t orTraceStop(void) {
  return guarded([] {
    if (const orError_t error = check_not_forked()) return error;
    trace::recorded_kinds.store(0);
    return orSuccess;
  });
}

orError_t orTraceIsOn(int* is_on) {
  return guarded_result("orTraceIsOn", is_on, [&] {
    *is_on = trace::is_on() ? 1 : 0;
    return orSuccess;
  });
}

orError_t orTraceRecordWork(orStream_t handle, const char* call, const orActivityRecord* work) {
  return guarded([&] {
    if (!trace::is_on()) return orSuccess;
    if (call == nullptr || work == nullptr || work->name == nullptr) {
      return fail(orErrorInvalidValue, "orTraceRecordWork: a pointer is null");
    }
    constexpr unsigned kinds = orActivityKernel | orActivityMemcpy | orActivityMemset;
    if ((work->kind & kinds) != work->kind || work->kind == 0 || work->end_ns < work->start_ns) {
      return fail(
          orErrorInvalidValue,
          concat("orTraceRecordWork: expected a kernel, memcpy or memset that ended after it "
                 "started, got kind ",
                 static_cast<unsigned>(work->kind), " from ", work->start_ns, " to ",
                 work->end_ns));
    }
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    trace::keep_host_work(*work, call, stream->device().index(), stream->id());
    return orSuccess;
  });
}

orError_t orTraceConsume(orActivityFn function, void* user_data) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    std::vector<trace::Taken*> heap;
    std::vector<trace::Taken> taken = trace::take_all(&heap);
    if (function == nullptr) return orSuccess;
    for (trace::Taken& one : taken) {
      std::stable_sort(one.records.begin(), one.records.end(),
                       [](const auto& a, const auto& b) { return a.end_ns < b.end_ns; });
    }
    // A heap of the buffers, the one with the earliest record on top. Merging needs no memory.
    const auto is_later = [](const trace::Taken* a, const trace::Taken* b) {
      return a->time_ns() != b->time_ns() ? a->time_ns() > b->time_ns() : a > b;
    };
    for (trace::Taken& one : taken) heap.push_back(&one);
    std::make_heap(heap.begin(), heap.end(), is_later);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), is_later);
      trace::Taken& first = *heap.back();
      function(&first.records[first.next++], user_data);
      if (first.is_over()) {
        heap.pop_back();
      } else {
        std::push_heap(heap.begin(), heap.end(), is_later);
      }
    }
    return orSuccess;
  });
}

orError_t orTracePushExternalId(uint64_t id) {
  return guarded([&] {
    trace::external_ids().push_back(id);
    return orSuccess;
  });
}

orError_t orTracePopExternalId(uint64_t* id) {
  return guarded([&] {
    std::vector<uint64_t>& ids = trace::external_ids();
    if (id == nullptr || ids.empty()) {
      return fail(orErrorInvalidValue, id == nullptr
                                           ? "orTracePopExternalId: id is null"
                                           : "orTracePopExternalId: no external id was pushed");
    }
    *id = ids.back();
    ids.pop_back();
    return orSuccess;
  });
}

orError_t orTraceGetTime(int64_t* now_ns) {
  return guarded_result("orTraceGetTime", now_ns, [&] {
    *now_ns = os::now_ns();
    return orSuccess;
  });
}

}  // extern "C"
