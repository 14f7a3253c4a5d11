#include "queue/completion.h"

#include "base/mutex.h"
#include "queue/stream.h"

namespace openreg {

// A constant, as the extra may replace it before or after this file's objects are made.
constinit MakeSharedEventFn make_shared_event = [](std::shared_ptr<SharedEvent>*) {
  return fail(orErrorNotSupported, "the library was built without events of several processes");
};

namespace {

// Unused completions. It grows to the largest number that were in use at once.
constinit Mutex pool_mutex;  // a leaf
constinit Completion* first_unused OPENREG_GUARDED_BY(pool_mutex) = nullptr;

}  // namespace

void Completion::bind(Stream& stream, uint64_t sequence) {
  stream_ = &stream;
  sequence_ = sequence;
}

void Completion::resolve(int64_t time_ns, FailureRef failure) {
  time_ns_ = time_ns;
  failure_ = std::move(failure);
  if (shared_ != nullptr) shared_->complete(failure_ != nullptr);
}

bool Completion::is_complete() const {
  return remote_ != nullptr ? remote_->is_complete(&failure_) : stream_->retired() >= sequence_;
}

orError_t Completion::wait() const {
  return remote_ != nullptr ? remote_->wait(&failure_) : stream_->wait(sequence_);
}

void Completion::clear() {
  shared_.reset();
  remote_.reset();
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

CompletionRef CompletionRef::make(std::unique_ptr<RemoteRecord> record) {
  CompletionRef made = make();
  made.completion_->remote_ = std::move(record);
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
