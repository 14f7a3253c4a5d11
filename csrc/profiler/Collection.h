// The runtime's trace, which is one per process, and the session that has it.
#pragma once

#include <openreg/trace.h>

#include <cstdint>
#include <vector>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

class OPENREG_EXPORT Collection {
 public:
  // Forgets earlier records and starts to record for a session; whoever recorded before loses the
  // trace. Throws in a forked process.
  static void begin(uint64_t session, unsigned kinds);

  // Stops, if the session still has the trace; returns whether it had.
  static bool end(uint64_t session);

  // A number for a session, from 1.
  static uint64_t nextSession();

  // Does the same for a session of no profiler's, with all kinds of record, and returns its
  // number. Throws if another session has the trace.
  static uint64_t beginAlone();

  // Ends it and returns its records. Throws if a session of torch.profiler took the trace.
  static std::vector<orActivityRecord> endAlone(uint64_t session);

  // All records made so far, which are then forgotten.
  static std::vector<orActivityRecord> takeRecords();

  // Interrupts and continues the recording of the session that has the trace. Without one they do
  // nothing.
  static void pause();
  static void resume();
};

}  // namespace at::openreg
