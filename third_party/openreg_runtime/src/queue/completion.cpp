#include "queue/completion.h"

#include "base/mutex.h"
#include "queue/stream.h"

namespace openreg {
namespace {

// Unused completions. It grows to the largest number that were in use at once.
constinit Mutex pool_mutex;  // a leaf
constinit Completion* first_unused OPENREG_GUARDED_BY(pool_mutex) = nullptr;

}  // namespace

void Completion::bind(Stream& stream, uint64_t sequence) {
  stream_ = &stream;
  sequence_ = sequence;
}

orError_t Completion::share() {
  Ledger* ledger = nullptr;
  if (const orError_t error = Ledger::get(&ledger)) return error;
  RecordName name{};
  if (const orError_t error = ledger->make_record(&name)) return error;
  shared_ = name;
  return orSuccess;
}

orError_t Completion::share_in(const PeerEvent& event) {
  RecordName name{};
  if (const orError_t error = make_record(event, &name)) return error;
  shared_ = name;
  shared_in_ = event.peer;
  return orSuccess;
}

void Completion::resolve(int64_t time_ns, FailureRef failure) {
  time_ns_ = time_ns;
  failure_ = std::move(failure);
  if (!shared_) return;
  if (shared_in_ != nullptr) {
    complete_record(*shared_in_, *shared_, failure_ != nullptr);
  } else {
    Ledger::existing()->complete(*shared_, failure_ != nullptr);
  }
}

bool Completion::is_complete() const {
  return peer_record_ ? peer_record_->is_complete(&failure_) : stream_->retired() >= sequence_;
}

orError_t Completion::wait() const {
  return peer_record_ ? peer_record_->wait(&failure_) : stream_->wait(sequence_);
}

void Completion::clear() {
  if (shared_ && shared_in_ != nullptr) {
    complete_record(*shared_in_, *shared_, /*has_failed=*/false);  // if it was never resolved
  } else if (shared_) {
    Ledger::existing()->drop_record(*shared_);
  }
  shared_.reset();
  shared_in_.reset();
  peer_record_.reset();
  failure_.reset();
  stream_ = nullptr;
}

CompletionRef CompletionRef::make() {
  CompletionRef made;
  {
    const Lock lock(pool_mutex);
    made.completion_ = first_unused;
    if (made.completion_ != nullptr) first_unused = made.completion_->next_free_;
  }
  if (made.completion_ == nullptr) made.completion_ = new Completion;
  made.completion_->references_.store(1, std::memory_order_relaxed);
  return made;
}

CompletionRef CompletionRef::make(PeerRecord record) {
  CompletionRef made = make();
  made.completion_->peer_record_ = std::move(record);
  return made;
}

CompletionRef::CompletionRef(const CompletionRef& other) : completion_(other.completion_) {
  if (completion_ != nullptr) completion_->references_.fetch_add(1, std::memory_order_relaxed);
}

CompletionRef::~CompletionRef() {
  if (completion_ == nullptr) return;
  if (completion_->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  completion_->clear();
  const Lock lock(pool_mutex);
  completion_->next_free_ = first_unused;
  first_unused = completion_;
}

}  // namespace openreg
