// Events that processes share, and their records. extras/shared_event.cpp implements them, and
// installs a function here when the library is loaded; without it there are none.
#pragma once

#include <memory>

#include "base/error.h"

namespace openreg {

// A record of this process that others may wait for. Its destruction ends it for them, if it was
// not completed.
class SharedRecord {
 public:
  virtual ~SharedRecord() = default;

  // Worker: tells the others that it is complete.
  virtual void complete(bool has_failed) = 0;
};

// A record that another process is to complete. Made for one wait, and used by one thread at a
// time.
class RemoteRecord {
 public:
  virtual ~RemoteRecord() = default;

  // Stores whether the record is complete, and if so its failure, else null. A record whose process
  // has ended is complete.
  virtual bool is_complete(FailureRef* failure) const = 0;

  // Waits until it is complete. Fails if this process exits.
  virtual orError_t wait(FailureRef* failure) const = 0;
};

// An event of this process or of another one. An event of this process ends for the others with the
// object.
class SharedEvent {
 public:
  virtual ~SharedEvent() = default;

  // Makes a record of the event that this process completes. Fails if another process has destroyed
  // the event.
  virtual orError_t make_record(std::unique_ptr<SharedRecord>* record) = 0;

  // Makes such a record the latest one.
  virtual void publish(const SharedRecord& record) = 0;

  // Stores the latest record, if another process is to complete it, else null. Fails as
  // make_record().
  virtual orError_t find_latest(std::unique_ptr<RemoteRecord>* record) const = 0;
};

// Makes an event of this process.
using MakeSharedEventFn = orError_t (*)(std::shared_ptr<SharedEvent>* event);
extern MakeSharedEventFn make_shared_event;

}  // namespace openreg
