#include "torch_openreg/core/Stream.h"

#include <c10/core/DeviceGuard.h>
#include <openreg/openreg.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <tuple>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/Interrupt.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {
namespace {

constexpr std::array<int, 2> kPoolPriorities = {0, -1};
constexpr size_t kPoolStreams = kPoolPriorities.size() * kStreamsPerPool;

StreamId idOf(orStream_t stream) {
  unsigned long long id = 0;
  OPENREG_CHECK(orStreamGetId(stream, &id));
  return static_cast<StreamId>(id);
}

// The pool of shared streams of one device: those of normal priority, then those of high priority.
class StreamPool {
 public:
  // Creates the streams at the first call.
  void prepare(DeviceIndex device) {
    if (C10_UNLIKELY(!is_created_.load(std::memory_order_acquire))) {
      // The device is created first: this calls Python, which may switch to another thread, and
      // that thread must not wait here with the GIL.
      orStream_t of_device = nullptr;
      OPENREG_CHECK(orGetDefaultStream(&of_device, device));
      std::call_once(created_, [&] { create(device); });
    }
  }

  // The id of the next stream, round-robin.
  StreamId next(int kind) {
    const size_t slot = next_[kind].fetch_add(1) % kStreamsPerPool;
    return ids_[kind * kStreamsPerPool + slot];
  }

  // Null if the id does not belong to the pool.
  orStream_t find(StreamId id) const {
    // The ids are consecutive unless other threads created streams of the device meanwhile.
    if (const auto slot = static_cast<size_t>(id - ids_.front());
        C10_LIKELY(slot < kPoolStreams && ids_[slot] == id)) {
      return streams_[slot];
    }
    const auto* const found = std::lower_bound(ids_.begin(), ids_.end(), id);
    return found != ids_.end() && *found == id ? streams_[found - ids_.begin()] : nullptr;
  }

 private:
  void create(DeviceIndex device) {
    const DeviceGuard guard(Device(kDeviceType, device));
    for (size_t i = 0; i < kPoolStreams; ++i) {
      const int priority = kPoolPriorities[i / kStreamsPerPool];
      OPENREG_CHECK(orStreamCreateWithPriority(&streams_[i], orStreamNonBlocking, priority));
      ids_[i] = idOf(streams_[i]);
    }
    is_created_.store(true, std::memory_order_release);
  }

  std::once_flag created_;
  std::atomic<bool> is_created_{false};
  std::array<orStream_t, kPoolStreams> streams_{};
  std::array<StreamId, kPoolStreams> ids_{};  // ascending
  std::array<std::atomic<uint32_t>, kPoolPriorities.size()> next_{};
};

// Leaked, because streams are in use until the process ends.
StreamPool& poolOf(DeviceIndex device) {
  static auto* pools = new std::array<StreamPool, OPENREG_MAX_DEVICES>();
  StreamPool& pool = (*pools)[device];
  pool.prepare(device);
  return pool;
}

struct CurrentStream {
  StreamId id;
  orStream_t handle;  // null until looked up
};
thread_local std::array<CurrentStream, OPENREG_MAX_DEVICES> current_streams{};

Stream makeStream(DeviceIndex device, StreamId id) {
  return Stream(Stream::UNSAFE, Device(kDeviceType, device), id);
}

orStream_t lookUpHandle(const Stream& stream) {
  const DeviceIndex device = stream.device_index();
  const StreamId id = stream.id();
  orStream_t handle = nullptr;
  if (id == 0) {
    OPENREG_CHECK(orGetDefaultStream(&handle, device));
    return handle;
  }
  if (const orStream_t found = poolOf(device).find(id); C10_LIKELY(found != nullptr)) {
    return found;
  }
  TORCH_CHECK(id > 0, "Stream: expected the id of a stream, at least 0, got ", id);
  OPENREG_CHECK(orStreamGetById(&handle, device, static_cast<unsigned long long>(id)));
  return handle;
}

}  // namespace

OpenRegStream::OpenRegStream(Stream stream) : stream_(stream), handle_(nullptr) {
  TORCH_CHECK(stream.device_type() == kDeviceType, "Stream: expected a stream of device type ",
              kDeviceType, ", got ", stream);
  check_device_index(stream.device_index());
  handle_ = lookUpHandle(stream);
}

bool OpenRegStream::isAlive() const {
  const bool is_ours = id() == 0 || poolOf(device_index()).find(id()) != nullptr;
  if (is_ours || orStreamValidate(reinterpret_cast<uintptr_t>(handle_)) == orSuccess) {
    return true;
  }
  // The failure is the result, and must not stay this thread's last error.
  std::ignore = orGetLastError();
  return false;
}

bool OpenRegStream::hasEnded() const {
  int has_ended = 0;
  OPENREG_CHECK(orStreamHasEnded(&has_ended, handle_));
  return has_ended != 0;
}

bool OpenRegStream::query(const char* caller) const {
  const orError_t error = orStreamQuery(handle_);
  if (error == orErrorNotReady) {
    return false;
  }
  OPENREG_CHECK_RESULT(error, caller);
  return true;
}

void OpenRegStream::synchronize(const char* caller) const {
  // Most waits of programs that read single values have nothing to wait for.
  orError_t error = orStreamTrySynchronize(handle_);
  if (error == orErrorNotReady) {
    const BlockingRegion region;
    error = waitInterruptibly([this] { return orStreamSynchronize(handle_); });
  }
  OPENREG_CHECK_RESULT(error, caller);
}

int OpenRegStream::priority() const {
  int priority = 0;
  OPENREG_CHECK(orStreamGetPriority(handle_, &priority));
  return priority;
}

bool OpenRegStream::isCapturing() const {
  orStreamCaptureStatus status = orStreamCaptureStatusNone;
  OPENREG_CHECK(orStreamIsCapturing(handle_, &status));
  return status != orStreamCaptureStatusNone;
}

uint64_t OpenRegStream::captureId() const {
  orStreamCaptureStatus status = orStreamCaptureStatusNone;
  unsigned long long id = 0;
  OPENREG_CHECK(orStreamGetCaptureInfo(handle_, &status, &id));
  return id;
}

OpenRegStream getDefaultOpenRegStream(DeviceIndex index) {
  return OpenRegStream(makeStream(resolveDeviceIndex(index), 0));
}

OpenRegStream getCurrentOpenRegStream(DeviceIndex index) {
  const DeviceIndex device = resolveDeviceIndex(index);
  CurrentStream& current = current_streams[device];
  const Stream stream = makeStream(device, current.id);
  if (C10_UNLIKELY(current.handle == nullptr)) {
    current.handle = lookUpHandle(stream);
  }
  return OpenRegStream(stream, current.handle);
}

void setCurrentOpenRegStream(const OpenRegStream& stream) {
  current_streams[stream.device_index()] = {stream.id(), stream.stream()};
}

OpenRegStream getStreamFromPool(bool is_high_priority, DeviceIndex index) {
  return getStreamFromPool(is_high_priority ? -1 : 0, index);
}

// docs: stream-from-pool
OpenRegStream getStreamFromPool(int priority, DeviceIndex index) {
  const DeviceIndex device = resolveDeviceIndex(index);
  const OpenRegStream stream(makeStream(device, poolOf(device).next(priority < 0 ? 1 : 0)));
  observe(&Observer::streamCreation, stream);
  return stream;
}
// docs: end

OpenRegStream getStreamFromExternal(orStream_t handle, DeviceIndex index) {
  TORCH_CHECK(handle != nullptr, "ExternalStream: expected a stream handle, got a null pointer");
  const DeviceIndex device = resolveDeviceIndex(index);
  OPENREG_CHECK(orStreamValidate(reinterpret_cast<uintptr_t>(handle)));
  int owner = -1;
  OPENREG_CHECK(orStreamGetDevice(handle, &owner));
  TORCH_CHECK(owner == device, "ExternalStream: expected a stream of device ",
              static_cast<int>(device), ", got one of device ", owner);
  return OpenRegStream(makeStream(device, idOf(handle)), handle);
}

}  // namespace c10::openreg
