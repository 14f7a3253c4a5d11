// The runtime's trace, of which there is one per process, and the session that owns it.
#pragma once

#include <openreg/trace.h>

#include <cstdint>
#include <vector>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

class OPENREG_EXPORT Collection {
 public:
  // Discards earlier records and starts recording for a session; the previous owner loses the
  // trace. Throws in a forked process.
  static void begin(uint64_t session, unsigned kinds);

  // Stops recording if the session still owns the trace; returns whether it does.
  static bool end(uint64_t session);

  // A number for a session, from 1.
  static uint64_t nextSession();

  // Starts a session without a profiler, with all kinds of records, and returns its number. Throws
  // if another session owns the trace.
  static uint64_t beginAlone();

  // Ends that session and returns its records. Throws if a torch.profiler session took the trace.
  static std::vector<orActivityRecord> endAlone(uint64_t session);

  // Takes all records made so far. Copies and fills have the names of WorkDescription.
  static std::vector<orActivityRecord> takeRecords();

  // Pauses and resumes the recording of the session that owns the trace. Does nothing without one.
  static void pause();
  static void resume();
};

}  // namespace at::openreg
