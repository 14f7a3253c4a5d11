#include "csrc/extras/profiler/GpuTrace.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/util/Synchronized.h>

#include <cstdint>
#include <type_traits>
#include <unordered_set>

#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {
namespace {

using c10::openreg::kDeviceType;
using c10::openreg::Observer;
using c10::openreg::OpenRegStream;
using Interpreter = c10::impl::PyInterpreterVTable;

uintptr_t numberOf(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// CUDA's default stream is 0.
uintptr_t numberOf(const OpenRegStream& stream) {
  const bool is_zero = c10::openreg::servesCuda() && stream.id() == 0;
  return is_zero ? 0 : numberOf(static_cast<const void*>(stream.stream()));
}

using Numbers = std::unordered_set<uintptr_t>;

// The callbacks run in torch's Python interpreter, which handles their exceptions.
class GpuTrace final : public Observer {
 public:
  explicit GpuTrace(RunTraceCall run) : run_(run) {}

  void streamCreation(const OpenRegStream& stream) override {
    const uintptr_t number = numberOf(stream);
    if (streams_.withLock([&](Numbers& known) { return known.insert(number).second; })) {
      call(&Interpreter::trace_gpu_stream_creation, number);
    }
  }

  // An event of torch has a handle from its first record on.
  void eventRecord(const void* event, const OpenRegStream& stream) override {
    const uintptr_t number = numberOf(event);
    if (events_.withLock([&](Numbers& known) { return known.insert(number).second; })) {
      call(&Interpreter::trace_gpu_event_creation, number);
    }
    call(&Interpreter::trace_gpu_event_record, number, numberOf(stream));
  }

  void eventWait(const void* event, const OpenRegStream& stream) override {
    call(&Interpreter::trace_gpu_event_wait, numberOf(event), numberOf(stream));
  }

  void eventDeletion(const void* event) noexcept override {
    if (events_.withLock([&](Numbers& known) { return known.erase(numberOf(event)) != 0; })) {
      call(&Interpreter::trace_gpu_event_deletion, numberOf(event));
    }
  }

  // As a record on one stream and a wait on the other would be.
  void streamWait(const OpenRegStream& stream, const OpenRegStream& other) override {
    const Observer& event = *this;
    eventRecord(&event, other);
    eventWait(&event, stream);
  }

  void eventSynchronization(const void* event) override {
    call(&Interpreter::trace_gpu_event_synchronization, numberOf(event));
  }

  void streamSynchronization(const OpenRegStream& stream) override {
    call(&Interpreter::trace_gpu_stream_synchronization, numberOf(stream));
  }

  void deviceSynchronization(c10::DeviceIndex /*device*/) override {
    call(&Interpreter::trace_gpu_device_synchronization);
  }

  void memoryAllocation(const void* address, size_t /*requested*/, size_t /*size*/,
                        const OpenRegStream& /*stream*/, c10::MempoolId_t /*pool*/) override {
    call(&Interpreter::trace_gpu_memory_allocation, numberOf(address));
  }

  void memoryDeallocation(const void* address, size_t /*size*/, const OpenRegStream& /*owner*/,
                          c10::MempoolId_t /*pool*/) noexcept override {
    call(&Interpreter::trace_gpu_memory_deallocation, numberOf(address));
  }

 private:
  template <typename... Parameters>
  void call(void (Interpreter::*callback)(c10::DeviceType, Parameters...) const,
            std::type_identity_t<Parameters>... arguments) const {
    if (const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace()) {
      run_([&] { ((**interpreter).*callback)(kDeviceType, arguments...); });
    }
  }

  RunTraceCall run_;
  // What has been announced as created. Their locks are leaves.
  c10::Synchronized<Numbers> streams_;
  c10::Synchronized<Numbers> events_;
};

}  // namespace

void startGpuTrace(RunTraceCall run) {
  // Leaked, because memory may be freed by static destructors.
  static auto* trace = new GpuTrace(run);
  if (c10::impl::GPUTrace::get_trace() != nullptr) {
    [[maybe_unused]] static const bool is_added = [] {
      c10::openreg::addObserver(*trace);
      return true;
    }();
  }
}

}  // namespace at::openreg
