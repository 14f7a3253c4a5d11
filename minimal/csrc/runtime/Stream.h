// Step 4 of docs/bring_up.md, streams. In full: csrc/core/Stream.cpp.
#pragma once

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>

#include "Functions.h"

namespace chip {

// docs: minimal-stream
// A c10::Stream is a device and a number: 0 for the default stream, else the driver's handle.
inline Stream makeStream(DeviceIndex d, StreamId id) {
  return Stream(Stream::UNSAFE, {kType, d}, id);
}

inline orStream_t handleOf(const Stream& stream) {
  auto* handle = reinterpret_cast<orStream_t>(stream.id());
  if (handle == nullptr) check(orGetDefaultStream(&handle, stream.device_index()));
  check(orStreamValidate(reinterpret_cast<uintptr_t>(handle)));  // torch.Stream takes any number
  return handle;
}

// Each thread has a current stream for each device.
inline thread_local std::array<StreamId, OPENREG_MAX_DEVICES> current_ids{};

inline Stream currentStream(DeviceIndex d) { return makeStream(d, current_ids.at(d)); }

// A c10::Stream has no owner that could destroy it. So the streams that are made stay, and are
// given out again when there are enough of them.
inline Stream streamFromPool(DeviceIndex device, int priority) {
  static auto* mutex = new std::mutex;  // never destroyed, as streams are used to the very end
  static auto* pools = new std::map<std::pair<DeviceIndex, bool>, std::deque<orStream_t>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  std::deque<orStream_t>& pool = (*pools)[{device, priority < 0}];
  if (pool.size() < 32) {
    const c10::DeviceGuard guard(Device(kType, device));
    orStream_t made = nullptr;
    check(orStreamCreateWithPriority(&made, orStreamNonBlocking, priority));
    pool.push_front(made);
  } else {
    std::rotate(pool.begin(), std::prev(pool.end()), pool.end());
  }
  return makeStream(device, reinterpret_cast<StreamId>(pool.front()));
}
// docs: end

// The number of the capture that turns the stream's work into a graph; 0 if there is none.
inline unsigned long long captureOf(const Stream& stream) {
  orStreamCaptureStatus status{};
  unsigned long long id = 0;
  check(orStreamGetCaptureInfo(handleOf(stream), &status, &id));
  return id;
}

}  // namespace chip
