#include "csrc/extras/profiler/Collection.h"

#include <atomic>
#include <tuple>

#include "csrc/core/Mutex.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/TraceScope.h"

namespace at::openreg {
namespace {

struct Owner {
  c10::openreg::Mutex mutex;                       // before the runtime's
  uint64_t session OPENREG_GUARDED_BY(mutex) = 0;  // 0: none
  unsigned kinds OPENREG_GUARDED_BY(mutex) = 0;
  bool is_paused OPENREG_GUARDED_BY(mutex) = false;
};

// Leaked, because a session may end with the process.
Owner& owner() {
  static Owner* owner = new Owner();
  return *owner;
}

// Discards earlier records and starts recording.
void take(Owner& current, uint64_t session, unsigned kinds) OPENREG_REQUIRES(current.mutex) {
  OPENREG_CHECK(orTraceConsume(nullptr, nullptr));
  OPENREG_CHECK(orTraceStart(kinds));
  current.session = session;
  current.kinds = kinds;
  current.is_paused = false;
}

// The runtime's copies and fills are named after its functions; those of the backend's kernels have
// CUDA's names.
const char* nameOf(const orActivityRecord& record) {
  if (record.kind != orActivityMemcpy && record.kind != orActivityMemset) {
    return record.name;
  }
  return c10::openreg::WorkDescription{record.kind, record.bytes, record.memcpy_kind,
                                       record.peer_device}
      .name();
}

}  // namespace

uint64_t Collection::nextSession() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

void Collection::begin(uint64_t session, unsigned kinds) {
  Owner& current = owner();
  const c10::openreg::Lock lock(current.mutex);
  take(current, session, kinds);
}

bool Collection::end(uint64_t session) {
  Owner& current = owner();
  const c10::openreg::Lock lock(current.mutex);
  if (current.session != session) {
    return false;
  }
  current.session = 0;
  // Fails only in a forked child, because the trace belongs to its parent.
  std::ignore = orTraceStop();
  return true;
}

uint64_t Collection::beginAlone() {
  Owner& current = owner();
  const c10::openreg::Lock lock(current.mutex);
  TORCH_CHECK(current.session == 0, "collect: expected no running profiler session, got one");
  const uint64_t session = nextSession();
  take(current, session, orActivityAll);
  return session;
}

std::vector<orActivityRecord> Collection::endAlone(uint64_t session) {
  TORCH_CHECK(end(session),
              "collect: torch.profiler took over the trace before the collection ended");
  return takeRecords();
}

std::vector<orActivityRecord> Collection::takeRecords() {
  std::vector<orActivityRecord> records;
  const auto keep = [](const orActivityRecord* record, void* records) {
    auto& kept = *static_cast<std::vector<orActivityRecord>*>(records);
    kept.push_back(*record);
    kept.back().name = nameOf(*record);
  };
  OPENREG_WARN_IF_FAILED(orTraceConsume(keep, &records));
  return records;
}

void Collection::pause() {
  Owner& current = owner();
  const c10::openreg::Lock lock(current.mutex);
  if (current.session != 0 && !current.is_paused) {
    OPENREG_CHECK(orTraceStop());
    current.is_paused = true;
  }
}

void Collection::resume() {
  Owner& current = owner();
  const c10::openreg::Lock lock(current.mutex);
  if (current.session != 0 && current.is_paused) {
    OPENREG_CHECK(orTraceStart(current.kinds));
    current.is_paused = false;
  }
}

}  // namespace at::openreg
