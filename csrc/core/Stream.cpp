#include "torch_openreg/core/Stream.h"

#include <c10/core/DeviceGuard.h>
#include <openreg/openreg.h>

#include <array>
#include <atomic>
#include <mutex>
#include <tuple>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/Interrupt.h"
#include "torch_openreg/core/Exception.h"

namespace c10::openreg {
namespace {

enum class StreamKind : StreamId { NormalPool = 1, HighPool = 2 };

constexpr StreamId kKindCount =
    8;  // ids are index * kKindCount + kind; handles are multiples of it
constexpr std::array<int, 2> kPoolPriorities = {0, -1};

// Hands out streams of one priority on one device.
class StreamPool {
 public:
  orStream_t at(int slot, DeviceIndex device, int priority) {
    if (C10_UNLIKELY(!is_created_.load(std::memory_order_acquire))) {
      // The device is created first: Python hears of it, and may run meanwhile in another thread,
      // which must not wait here with the GIL.
      orStream_t of_device = nullptr;
      OPENREG_CHECK(orGetDefaultStream(&of_device, device));
      std::call_once(created_, [&] { create(device, priority); });
    }
    return streams_[slot];
  }

  int nextSlot() { return static_cast<int>(next_.fetch_add(1) % kStreamsPerPool); }

 private:
  void create(DeviceIndex device, int priority) {
    const DeviceGuard guard(Device(kDeviceType, device));
    for (orStream_t& stream : streams_) {
      OPENREG_CHECK(orStreamCreateWithPriority(&stream, orStreamNonBlocking, priority));
    }
    is_created_.store(true, std::memory_order_release);
  }

  std::once_flag created_;
  std::atomic<bool> is_created_{false};
  std::array<orStream_t, kStreamsPerPool> streams_{};
  std::atomic<uint32_t> next_{0};
};

// Leaked: streams are in use until the process ends.
StreamPool& pool(DeviceIndex device, int kind) {
  using Pools = std::array<std::array<StreamPool, kPoolPriorities.size()>, OPENREG_MAX_DEVICES>;
  static Pools* pools = new Pools();
  return (*pools)[device][kind];
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
  const StreamId kind = id % kKindCount;
  if (kind == 0) {
    OPENREG_CHECK(orStreamValidate(static_cast<uintptr_t>(id)));
    handle = reinterpret_cast<orStream_t>(id);
    int owner = -1;
    OPENREG_CHECK(orStreamGetDevice(handle, &owner));
    TORCH_CHECK(owner == device, "OpenRegStream: expected a stream of device ",
                static_cast<int>(device), ", got one of device ", owner);
    return handle;
  }
  const StreamId slot = id / kKindCount;
  const StreamId pool_index = kind - 1;
  TORCH_CHECK(id > 0 && slot < kStreamsPerPool &&
                  pool_index < static_cast<StreamId>(kPoolPriorities.size()),
              "OpenRegStream: expected the id of an OpenReg stream, got ", id);
  return pool(device, static_cast<int>(pool_index))
      .at(static_cast<int>(slot), device, kPoolPriorities[pool_index]);
}

}  // namespace

OpenRegStream::OpenRegStream(Stream stream) : stream_(stream), handle_(nullptr) {
  TORCH_CHECK(stream.device_type() == kDeviceType,
              "OpenRegStream: expected a stream of device type ", kDeviceType, ", got ", stream);
  check_device_index(stream.device_index());
  handle_ = lookUpHandle(stream);
}

bool OpenRegStream::isAlive() const {
  const bool is_external = id() != 0 && id() % kKindCount == 0;
  if (!is_external || orStreamValidate(reinterpret_cast<uintptr_t>(handle_)) == orSuccess) {
    return true;
  }
  // An answer, not this thread's last error.
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
  const BlockingRegion region;
  OPENREG_CHECK_RESULT(waitInterruptibly([this] { return orStreamSynchronize(handle_); }), caller);
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
  const int kind = priority < 0 ? 1 : 0;
  const StreamId slot = pool(device, kind).nextSlot();
  return OpenRegStream(makeStream(device, slot * kKindCount + kind + 1));
}
// docs: end

OpenRegStream getStreamFromExternal(orStream_t handle, DeviceIndex index) {
  TORCH_CHECK(handle != nullptr, "ExternalStream: expected a stream handle, got a null pointer");
  const auto id = reinterpret_cast<StreamId>(handle);
  TORCH_CHECK(id % kKindCount == 0, "ExternalStream: expected a stream handle, got ", id);
  return OpenRegStream(makeStream(resolveDeviceIndex(index), id));
}

}  // namespace c10::openreg
