// Streams for c10, and the current stream of each device.
//
// Note [Stream ids]
// A c10::Stream is a device and a 64-bit id. The id is the runtime's number of the stream, which
// errors, traces and the sanitizer also show: 0 is the device's default stream. All streams of a
// device's pools are created at the first request for one, so they have the numbers from 1, unless
// a program has created streams by the runtime's API before. A stream without work has no thread.
// Pool streams are never destroyed, so their ids stay valid; the id of an external stream is valid
// until its owner destroys the stream.
//
// The defaults are those of Functions.h.
#pragma once

#include <c10/core/Stream.h>
#include <openreg/stream.h>

#include <ostream>

#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Streams per device and priority; further requests share them, round-robin.
constexpr int kStreamsPerPool = 32;

// A c10::Stream of this device type, with its runtime handle.
class OPENREG_EXPORT OpenRegStream {
 public:
  // Throws if the stream belongs to another device type, or if its id is not that of a stream.
  explicit OpenRegStream(Stream stream);

  Stream unwrap() const { return stream_; }
  operator Stream() const { return stream_; }

  // The runtime's handle. It is not null, not even for the default stream.
  orStream_t stream() const { return handle_; }
  operator orStream_t() const { return handle_; }

  DeviceType device_type() const { return stream_.device_type(); }
  Device device() const { return stream_.device(); }
  DeviceIndex device_index() const { return stream_.device_index(); }
  StreamId id() const { return stream_.id(); }

  // The three numbers by which a stream is passed to Python and back.
  StreamData3 pack3() const { return stream_.pack3(); }
  static OpenRegStream unpack3(StreamId id, DeviceIndex index, DeviceType type) {
    return OpenRegStream(Stream::unpack3(id, index, type));
  }

  // False if the owner of an external stream has destroyed it. Its work still runs, but nothing can
  // be recorded or enqueued.
  bool isAlive() const;

  // Whether it is not alive and its work is done. Does not wait.
  bool hasEnded() const;

  // Whether all work submitted so far is done. `caller` is used in error texts.
  // Capture: an error while the stream captures, which invalidates the capture.
  // Errors: the stream's asynchronous error, which is cleared.
  bool query(const char* caller = "orStreamQuery") const;

  // Waits until all work submitted so far is done. `caller` is used in error texts. The caller must
  // have released the GIL.
  // Capture: an error while the stream captures, which invalidates the capture.
  // Errors: the stream's asynchronous error, which is cleared.
  void synchronize(const char* caller = "orStreamSynchronize") const;

  int priority() const;
  bool isCapturing() const;

  // The id of the stream's capture, 0 if it is not capturing.
  uint64_t captureId() const;

  bool operator==(const OpenRegStream& other) const { return stream_ == other.stream_; }
  bool operator!=(const OpenRegStream& other) const { return stream_ != other.stream_; }

 private:
  friend OpenRegStream getCurrentOpenRegStream(DeviceIndex index);
  friend OpenRegStream getStreamFromExternal(orStream_t handle, DeviceIndex index);
  OpenRegStream(Stream stream, orStream_t handle) : stream_(stream), handle_(handle) {}

  Stream stream_;
  orStream_t handle_;
};

// In all functions below, a negative device index means the current device; an index out of range
// throws.

// The default stream.
OPENREG_EXPORT OpenRegStream getDefaultOpenRegStream(DeviceIndex index = -1);

// The calling thread's current stream on a device; the default stream until it is set.
OPENREG_EXPORT OpenRegStream getCurrentOpenRegStream(DeviceIndex index = -1);

// Makes a stream current on its device, for the calling thread. Does not change the current device.
OPENREG_EXPORT void setCurrentOpenRegStream(const OpenRegStream& stream);

// A stream of the pool, round-robin: of high or of normal priority.
OPENREG_EXPORT OpenRegStream getStreamFromPool(bool is_high_priority = false,
                                               DeviceIndex index = -1);

// The same. A priority below 0 means the pool of high priority.
OPENREG_EXPORT OpenRegStream getStreamFromPool(int priority, DeviceIndex index = -1);

// Wraps a stream created by the runtime's API. The caller must keep it alive.
// Throws if the handle is not that of a live stream, or if the stream is on another device.
OPENREG_EXPORT OpenRegStream getStreamFromExternal(orStream_t handle, DeviceIndex index = -1);

// As c10::Stream, such as "stream 1 on device openreg:0".
inline std::ostream& operator<<(std::ostream& out, const OpenRegStream& stream) {
  return out << stream.unwrap();
}

}  // namespace c10::openreg

template <>
struct std::hash<c10::openreg::OpenRegStream> {
  size_t operator()(const c10::openreg::OpenRegStream& stream) const noexcept {
    return std::hash<c10::Stream>{}(stream.unwrap());
  }
};
