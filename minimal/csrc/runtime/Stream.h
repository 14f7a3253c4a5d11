// Step 4 of docs/bring_up.md, streams. In full: csrc/core/Stream.cpp.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "Functions.h"

namespace chip {

// docs: minimal-stream
// A c10::Stream is a device and a number: 0 for the default stream, else the driver's handle.
inline c10::Stream makeStream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

inline orStream_t handleOf(const c10::Stream& stream) {
  auto* handle = reinterpret_cast<orStream_t>(stream.id());
  if (handle == nullptr) check(orGetDefaultStream(&handle, stream.device_index()));
  check(orStreamValidate(reinterpret_cast<uintptr_t>(handle)));  // torch.Stream takes any number
  return handle;
}

// Each thread has a current stream for each device.
inline thread_local std::array<c10::StreamId, OPENREG_MAX_DEVICES> current_ids{};

inline c10::Stream currentStream(c10::DeviceIndex device) {
  return makeStream(device, current_ids.at(device));
}

// A c10::Stream has no owner that could destroy it. So the streams that are made stay, and are
// given out again when there are enough of them.
inline c10::Stream streamFromPool(c10::DeviceIndex device, int priority) {
  constexpr size_t kStreams = 32;
  static auto* mutex = new std::mutex;  // never destroyed, as streams are used to the very end
  static auto* pools = new std::map<std::pair<c10::DeviceIndex, bool>, std::deque<orStream_t>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  std::deque<orStream_t>& pool = (*pools)[{device, priority < 0}];
  if (pool.size() < kStreams) {
    const c10::DeviceGuard guard(c10::Device(kType, device));
    check(orStreamCreateWithPriority(&pool.emplace_front(), orStreamNonBlocking, priority));
  } else {
    std::rotate(pool.begin(), std::prev(pool.end()), pool.end());
  }
  return makeStream(device, reinterpret_cast<c10::StreamId>(pool.front()));
}
// docs: end

inline void synchronizeStream(const c10::Stream& stream) {
  wait([handle = handleOf(stream)] { return orStreamSynchronize(handle); });
}

}  // namespace chip
