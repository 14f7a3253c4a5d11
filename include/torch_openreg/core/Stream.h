// Streams, as c10 sees them, and the current stream of each device.
//
// Note [Stream ids]
// A c10::Stream is a device and a 64-bit id. The id is the runtime's number of the stream, which
// errors, traces and the sanitizer show as well: 0 is the device's default stream. The streams of
// the pools are created together, on the first request for one, so that a device's have the numbers
// from 1, unless a program has created streams of the runtime's API before. A stream without work
// has no thread. They are never destroyed, so the id of a pool stream stays valid; that of an
// external stream is, until its owner destroys the stream.
//
// The defaults are those of Functions.h.
#pragma once

#include <c10/core/Stream.h>
#include <openreg/stream.h>

#include <ostream>

#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Streams per device and priority; requests beyond it share, in turn.
constexpr int kStreamsPerPool = 32;

// A c10::Stream known to be one of ours, with its runtime handle.
class OPENREG_EXPORT OpenRegStream {
 public:
  // Throws if the stream belongs to another device type or its id names no stream.
  explicit OpenRegStream(Stream stream);

  Stream unwrap() const { return stream_; }
  operator Stream() const { return stream_; }

  // The runtime's handle. That of the default stream is not null: it is a stream like any other.
  orStream_t stream() const { return handle_; }
  operator orStream_t() const { return handle_; }

  DeviceType device_type() const { return stream_.device_type(); }
  Device device() const { return stream_.device(); }
  DeviceIndex device_index() const { return stream_.device_index(); }
  StreamId id() const { return stream_.id(); }

  // The triple that travels to Python and back.
  StreamData3 pack3() const { return stream_.pack3(); }
  static OpenRegStream unpack3(StreamId id, DeviceIndex index, DeviceType type) {
    return OpenRegStream(Stream::unpack3(id, index, type));
  }

  // False once the owner of an external stream has destroyed it. Its work still runs then, but
  // nothing can be recorded or enqueued any more.
  bool isAlive() const;

  // Whether it is not alive and its work is done. Waits for nothing.
  bool hasEnded() const;

  // Whether all work submitted so far is done. `caller` is who asks, for error texts.
  // Capture: an error while the stream captures, and the capture is invalid then.
  // Errors: the stream's asynchronous error, which it clears.
  bool query(const char* caller = "orStreamQuery") const;

  // Waits until all work submitted so far is done. `caller` is who waits, for error texts; it has
  // released the GIL.
  // Capture: an error while the stream captures, and the capture is invalid then.
  // Errors: the stream's asynchronous error, which it clears.
  void synchronize(const char* caller = "orStreamSynchronize") const;

  int priority() const;
  bool isCapturing() const;

  // The number of the capture that the stream is in, 0 if none.
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

// In all functions below, a negative device index means the current device; an index that is out
// of range throws.

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

// Wraps a stream that the runtime's API created. The caller keeps it alive.
// Throws if the handle is not that of a live stream or the stream is on another device.
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
