#include "csrc/extras/profiler/Collection.h"

#include <atomic>
#include <tuple>

#include "csrc/core/Mutex.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/TraceScope.h"

namespace at::openreg {
namespace {

// The session that owns the trace.
constinit c10::openreg::Mutex owner_mutex;                    // before the runtime's
uint64_t owning_session OPENREG_GUARDED_BY(owner_mutex) = 0;  // 0: none
unsigned kinds_of_owner OPENREG_GUARDED_BY(owner_mutex) = 0;
bool is_trace_paused OPENREG_GUARDED_BY(owner_mutex) = false;

// Discards earlier records and starts recording.
void take(uint64_t session, unsigned kinds) OPENREG_REQUIRES(owner_mutex) {
  OPENREG_CHECK(orTraceConsume(nullptr, nullptr));
  OPENREG_CHECK(orTraceStart(kinds));
  owning_session = session;
  kinds_of_owner = kinds;
  is_trace_paused = false;
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
  const c10::openreg::Lock lock(owner_mutex);
  take(session, kinds);
}

bool Collection::end(uint64_t session) {
  const c10::openreg::Lock lock(owner_mutex);
  if (owning_session != session) {
    return false;
  }
  owning_session = 0;
  // Fails only in a forked child, because the trace belongs to its parent.
  std::ignore = orTraceStop();
  return true;
}

uint64_t Collection::beginAlone() {
  const c10::openreg::Lock lock(owner_mutex);
  TORCH_CHECK(owning_session == 0, "collect: expected no running profiler session, got one");
  const uint64_t session = nextSession();
  take(session, orActivityAll);
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
  const c10::openreg::Lock lock(owner_mutex);
  if (owning_session != 0 && !is_trace_paused) {
    OPENREG_CHECK(orTraceStop());
    is_trace_paused = true;
  }
}

void Collection::resume() {
  const c10::openreg::Lock lock(owner_mutex);
  if (owning_session != 0 && is_trace_paused) {
    OPENREG_CHECK(orTraceStart(kinds_of_owner));
    is_trace_paused = false;
  }
}

}  // namespace at::openreg
