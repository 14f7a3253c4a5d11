// A gate that holds streams until it is opened: deterministic order for tests.

#include <openreg/stream.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Stream.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;

class Gate {
 public:
  // Enqueues a wait for the gate on the stream.
  void block(int64_t id, int64_t index, int64_t type) {
    const c10::openreg::OpenRegStream stream = unpackStream(id, index, type);
    // The enqueued wait owns a share, so the gate may be dropped while it is pending.
    auto share = std::make_unique<std::shared_ptr<State>>(state_);
    OPENREG_CHECK(orLaunchHostFunc(stream.handle(), &Gate::wait, share.get()));
    std::ignore = share.release();
  }

  void open() {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->is_open = true;
    state_->changed.notify_all();
  }

  bool isOpen() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->is_open;
  }

  // Waits until a stream has come to the gate; false if none has within the time.
  bool waitUntilReached(double timeout_s) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    return state_->changed.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                    [this] { return state_->is_reached; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false;     // guarded by mutex
    bool is_reached = false;  // guarded by mutex
  };

  // docs: gate-wait
  static void wait(void* user_data) {
    const std::unique_ptr<std::shared_ptr<State>> share(
        static_cast<std::shared_ptr<State>*>(user_data));
    State& state = **share;
    std::unique_lock<std::mutex> lock(state.mutex);
    state.is_reached = true;
    state.changed.notify_all();
    state.changed.wait(lock, [&state] { return state.is_open; });
  }
  // docs: end

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace

void bindGate(py::module_& m) {
  py::class_<Gate>(m, "_Gate")
      .def(py::init<>())
      .def("block", &Gate::block, ReleaseGil())
      .def("open", &Gate::open)
      .def("is_open", &Gate::isOpen)
      .def("wait_until_reached", &Gate::waitUntilReached, ReleaseGil());
}

}  // namespace torch_openreg
