// For tools of tests: a gate that holds streams until it is opened, and whether a test has launched
// work.

#include <openreg/stream.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <utility>

#include "csrc/core/Mutex.h"
#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Stream.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using c10::openreg::observe;
using c10::openreg::Observer;
using c10::openreg::OpenRegStream;
using c10::openreg::Verdict;

std::atomic<int> closed_gates = 0;  // that hold streams

class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  ~Gate() { observe(&Observer::eventDeletion, this); }

  // Enqueues a wait for the gate on the stream.
  void block(int64_t id, int64_t index, int64_t type) {
    const OpenRegStream stream = unpackStream(id, index, type);
    observe(&Observer::eventRecord, this, stream);
    ++blocked_streams_;
    // The enqueued wait shares ownership, so the gate may be destroyed while it is pending.
    auto share = std::make_unique<std::shared_ptr<State>>(state_);
    OPENREG_CHECK(orLaunchHostFunc(stream.stream(), &Gate::wait, share.get()));
    std::ignore = share.release();
    const c10::openreg::Lock lock(state_->mutex);
    if (!state_->is_open && !std::exchange(state_->is_counted, true)) {
      ++closed_gates;
    }
  }

  void open() {
    State& state = *state_;
    const c10::openreg::Lock lock(state.mutex);
    if (state.is_counted && !state.is_open) {
      --closed_gates;
    }
    state.is_open = true;
    state.changed.notify_all();
  }

  // The number of gates that hold streams.
  static int countClosed() { return closed_gates; }

  bool isOpen() const {
    const c10::openreg::Lock lock(state_->mutex);
    return state_->is_open;
  }

  // Waits until a stream has reached the gate; returns false on timeout.
  bool waitUntilReached(double timeout_s) {
    const auto duration = std::chrono::duration<double>(timeout_s);
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::duration_cast<std::chrono::steady_clock::duration>(duration);
    {
      State& state = *state_;
      c10::openreg::Lock lock(state.mutex);
      while (!state.is_reached) {
        if (lock.waitUntil(state.changed, deadline) == std::cv_status::timeout) {
          return state.is_reached;
        }
      }
    }
    // A host function runs after the earlier work of its stream. With several streams, it may be
    // any of them.
    if (blocked_streams_ == 1) {
      observe(&Observer::eventSynchronization, this);
    }
    return true;
  }

 private:
  struct State {
    c10::openreg::Mutex mutex;
    std::condition_variable changed;
    bool is_open OPENREG_GUARDED_BY(mutex) = false;
    bool is_counted OPENREG_GUARDED_BY(mutex) = false;
    bool is_reached OPENREG_GUARDED_BY(mutex) = false;
  };

  // docs: gate-wait
  static void wait(void* user_data) {
    const std::unique_ptr<std::shared_ptr<State>> share(
        static_cast<std::shared_ptr<State>*>(user_data));
    State& state = **share;
    c10::openreg::Lock lock(state.mutex);
    state.is_reached = true;
    state.changed.notify_all();
    while (!state.is_open) {
      lock.wait(state.changed);
    }
  }
  // docs: end

  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::atomic<int> blocked_streams_ = 0;
};

// Notes that work is launched, on any stream.
class LaunchObserver final : public Observer {
 public:
  // Whether there was any since the last call.
  bool take() { return has_launched_.exchange(false); }

  Verdict kernelAccess(const OpenRegStream& /*stream*/, const char* /*kernel*/,
                       c10::ArrayRef<c10::openreg::Operand> /*operands*/,
                       bool /*schema_only*/) override {
    return note();
  }
  Verdict rangeAccess(const OpenRegStream& /*stream*/, const char* /*kernel*/,
                      c10::ArrayRef<c10::openreg::Range> /*ranges*/) override {
    return note();
  }
  Verdict byteCopy(const OpenRegStream& /*stream*/, const char* /*kernel*/, const void* /*to*/,
                   const void* /*from*/, size_t /*nbytes*/) override {
    return note();
  }
  void kernelLaunch(const char* /*kernel*/) override { has_launched_ = true; }
  void graphReplay(uint64_t /*capture*/, const OpenRegStream& /*stream*/) override {
    has_launched_ = true;
  }

 private:
  Verdict note() {
    has_launched_ = true;
    return Verdict::Run;
  }

  std::atomic<bool> has_launched_{false};
};

// Whether work was launched since the last call; false in the first one, which starts to observe.
bool takeHasLaunched() {
  static LaunchObserver* const observer = [] {
    auto* added = new LaunchObserver;  // leaked, as other threads may call it at the end
    c10::openreg::addObserver(*added);
    return added;
  }();
  return observer->take();
}

void bindGate(py::module_& m) {
  py::class_<Gate>(m, "_Gate")
      .def(py::init<>())
      .def("block", &Gate::block, ReleaseGil())
      .def("open", &Gate::open)
      .def("is_open", &Gate::isOpen)
      .def_static("count_closed", &Gate::countClosed)
      .def("wait_until_reached", &Gate::waitUntilReached, ReleaseGil());
  m.def("_take_has_launched", &takeHasLaunched);
}

const Bindings kGateBindings(&bindGate);

}  // namespace

}  // namespace torch_openreg
