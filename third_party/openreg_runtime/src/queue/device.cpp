#include "queue/device.h"

#include <openreg/memory.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <tuple>

#include "base/mutex.h"
#include "base/os.h"
#include "base/process.h"
#include "base/setting.h"
#include "base/trace.h"
#include "base/wait_check.h"
#include "queue/capture_target.h"
#include "queue/stream.h"
#include "queue/worker.h"

namespace openreg {

// A constant, as fault.cpp may replace it before or after this file's objects are made.
constinit ProtectionFn install_memory_protection = [] { return true; };

namespace {

// How often an exiting process looks whether the running commands have ended.
constexpr int64_t exit_poll_ns = 200'000;

std::array<std::atomic<Device*>, OPENREG_MAX_DEVICES> devices;  // never reset

constinit Mutex creation_mutex;

std::atomic<orDeviceFn> created_function{nullptr};

void tell_created(int index) {
  if (const orDeviceFn function = created_function.load()) function(index);
}

// See Note [Exit] in process.h.
void stop_streams() {
  const std::vector<Stream*> streams = all_streams();
  for (Stream* stream : streams) stream->stop();
  const int64_t deadline = os::now_ns() + max_exit_wait_ns;
  for (Stream* stream : streams) {
    if (stream == Worker::current_stream()) continue;
    while (stream->is_running() && os::now_ns() < deadline) os::sleep_ns(exit_poll_ns);
  }
  for (Stream* stream : streams) stream->end_waits();
  if (turns::order != nullptr) turns::order->stop();
}

// What the first device of the process needs besides itself.
orError_t prepare_process(const AddressSpace** space) OPENREG_REQUIRES(creation_mutex) {
  *space = AddressSpace::get();
  if (*space != nullptr) return orSuccess;
  if (turns::order != nullptr) turns::order->begin();
  prepare_spare_failures();
  static bool is_watched = false;  // under the creation mutex, like all here
  if (!is_watched) {
    if (const orError_t error = watch_process(stop_streams)) return error;
    is_watched = true;
  }
  if (const orError_t error = AddressSpace::reserve(space)) return error;
  if (settings().has_memory_protection && !install_memory_protection()) {
    return fail(orErrorInitializationError, os::error_text("sigaction"));
  }
  return orSuccess;
}

// Puts memory behind a device's kernel addresses. Stores its file.
orError_t map_memory(int index, const AddressSpace& space, int* file) {
  const auto failed = [index](const char* call) {
    return fail(orErrorInitializationError,
                concat("cannot create the memory of device ", index, ": ", os::error_text(call)));
  };
  *file = os::create_memory_file(concat("openreg-device-", index).c_str(), space.stride);
  if (*file < 0) return failed("memfd_create");
  const uintptr_t address = space.base_of(index) + static_cast<uintptr_t>(space.kernel_offset);
  if (os::map_memory_file(reinterpret_cast<void*>(address), space.stride, *file)) {
    return orSuccess;
  }
  const orError_t error = failed("mmap");
  os::close_file(*file);
  return error;
}

// Of failures of several streams, the earliest; all are cleared that are not sticky.
FailureRef take_first_failure(const std::vector<Stream*>& streams) {
  FailureRef first;
  for (Stream* stream : streams) {
    FailureRef failure = stream->take_failure();
    if (failure && (!first || failure->time_ns < first->time_ns)) first = std::move(failure);
  }
  return first;
}

// Whether a failure is to be returned that no call has asked for.
bool is_news(const FailureRef& failure) {
  return failure != nullptr && !(failure->is_sticky && failure->is_reported.load());
}

orError_t synchronize(const std::vector<Device*>& waited_for, const char* function) {
  std::vector<Stream*> streams;
  for (Device* device : waited_for) {
    if (const orError_t error = check_may_wait(device->index(), function)) return error;
    const trace::Span span(orActivitySynchronize, function, device->index());
    if (const orError_t error = device->wait()) return error;
    const std::vector<Stream*> own = device->streams();
    streams.insert(streams.end(), own.begin(), own.end());
  }
  return report(take_first_failure(streams));
}

orError_t synchronize_index(int index, const char* function) {
  if (const orError_t error = check_not_forked()) return error;
  if (const orError_t error = check_device(index, function)) return error;
  Device* device = Device::active(index);
  return device == nullptr ? orSuccess : synchronize({device}, function);
}

}  // namespace

orError_t Device::get(int index, Device** device) {
  if (const orError_t error = check_not_forked()) return error;
  if (Device* found = active(index)) {
    *device = found;
    return orSuccess;
  }
  if (const orError_t error = check_device(index, "openreg")) return error;
  bool is_new = false;
  if (const orError_t error = create(index, &is_new)) return error;
  if (is_new) tell_created(index);
  *device = active(index);
  return orSuccess;
}

orError_t Device::create(int index, bool* is_new) {
  const Lock lock(creation_mutex);
  if (active(index) != nullptr) return orSuccess;
  const AddressSpace* space = nullptr;
  if (const orError_t error = prepare_process(&space)) return error;
  int memory_file = -1;
  if (const orError_t error = map_memory(index, *space, &memory_file)) return error;
  Device* device = nullptr;
  try {
    device = new Device(index, *space, memory_file);
  } catch (const std::bad_alloc&) {
    os::close_file(memory_file);
    throw;
  }
  add_arena(index, device->arena());  // before the device can be found
  // Sequentially consistent, as the other side is in orSetDeviceCreatedFunction(): either this
  // thread sees the function, or that one sees the device.
  devices[static_cast<size_t>(index)].store(device);
  *is_new = true;
  return orSuccess;
}

Device* Device::active(int index) {
  if (index < 0 || index >= OPENREG_MAX_DEVICES) return nullptr;
  return devices[static_cast<size_t>(index)].load(std::memory_order_acquire);
}

Device::Device(int index, const AddressSpace& space, int memory_file)
    : index_(index),
      memory_file_(memory_file),
      arena_(space.base_of(index), space.kernel_offset, space.capacity, space.stride),
      streams_(1),
      default_stream_(make_stream(*this, 0, orStreamDefault, least_stream_priority)) {
  streams_.front() = default_stream_;
}

Stream* Device::create_stream(unsigned flags, int priority) {
  const Lock lock(mutex_);
  std::erase_if(streams_, [](const Stream* other) { return other->has_ended(); });
  // The memory first, as a stream is never destroyed.
  if (streams_.size() == streams_.capacity()) streams_.reserve(2 * streams_.size());
  Stream* stream = make_stream(*this, last_stream_id_ + 1, flags, priority);
  ++last_stream_id_;
  streams_.push_back(stream);
  if (sticky_failure_ != nullptr) stream->set_failure(sticky_failure_);
  if (is_exiting()) stream->stop();
  return stream;
}

std::vector<Stream*> Device::streams() {
  const Lock lock(mutex_);
  return streams_;
}

Stream* Device::find_stream(uint64_t id) {
  const Lock lock(mutex_);
  const auto found =
      std::lower_bound(streams_.begin(), streams_.end(), id,
                       [](const Stream* stream, uint64_t wanted) { return stream->id() < wanted; });
  const bool is_live = found != streams_.end() && (*found)->id() == id && !(*found)->is_destroyed();
  return is_live ? *found : nullptr;
}

orError_t Device::wait() {
  for (Stream* stream : streams()) {
    if (const orError_t error = stream->wait(stream->submitted())) return error;
  }
  return orSuccess;
}

void Device::fail(FailureRef failure) {
  const Lock lock(mutex_);
  if (sticky_failure_ == nullptr) sticky_failure_ = std::move(failure);
  for (Stream* stream : streams_) stream->set_failure(sticky_failure_);
}

bool Device::is_busy() {
  const std::vector<Stream*> all = streams();
  return std::any_of(all.begin(), all.end(),
                     [](const Stream* stream) { return stream->retired() != stream->submitted(); });
}

std::vector<Device*> active_devices() {
  std::vector<Device*> active;
  for (int i = 0; i < OPENREG_MAX_DEVICES; ++i) {
    if (Device* device = Device::active(i)) active.push_back(device);
  }
  return active;
}

std::vector<Stream*> all_streams() {
  std::vector<Stream*> all;
  for (Device* device : active_devices()) {
    const std::vector<Stream*> streams = device->streams();
    all.insert(all.end(), streams.begin(), streams.end());
  }
  return all;
}

}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orGetDeviceCount(int* count) {
  return guarded_result("orGetDeviceCount", count, [&] {
    if (const orError_t error = check_settings()) return error;
    *count = visible_device_count();
    return orSuccess;
  });
}

orError_t orInit(void) {
  return guarded([] {
    if (const orError_t error = check_not_forked()) return error;
    if (const orError_t error = check_settings()) return error;
    const Lock lock(creation_mutex);
    const AddressSpace* space = nullptr;
    return prepare_process(&space);
  });
}

orError_t orSetDevice(int device) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    if (const orError_t error = check_device(device, "orSetDevice")) return error;
    set_current_device(device);
    return orSuccess;
  });
}

orError_t orGetDevice(int* device) {
  return guarded_result("orGetDevice", device, [&] {
    *device = current_device();
    return orSuccess;
  });
}

orError_t orGetDeviceProperties(orDeviceProp* properties, int index) {
  return guarded([&] {
    if (properties == nullptr) {
      return fail(orErrorInvalidValue, "orGetDeviceProperties: properties is null");
    }
    if (const orError_t error = check_device(index, "orGetDeviceProperties")) return error;
    const std::string processor = os::processor_name();
    const std::string name = processor.empty() ? "OpenReg" : "OpenReg (" + processor + ")";
    orDeviceProp result = {};
    std::strncpy(result.name, name.c_str(), sizeof(result.name) - 1);
    result.totalGlobalMem = settings().device_memory;
    result.major = 1;
    result.minor = 0;
    result.multiProcessorCount = os::processor_count();
    result.physicalOrdinal = settings().visible_devices[static_cast<size_t>(index)];
    result.clockRate = os::processor_clock_khz();
    result.warpSize = 1;
    result.textureAlignment = OPENREG_MEMORY_ALIGNMENT;
    result.concurrentKernels = 1;
    result.unifiedAddressing = 1;
    result.integrated = 1;
    *properties = result;
    return orSuccess;
  });
}

orError_t orDeviceIsActive(int device, int* is_active) {
  return guarded_result("orDeviceIsActive", is_active, [&] {
    if (const orError_t error = check_device(device, "orDeviceIsActive")) return error;
    *is_active = Device::active(device) != nullptr && !openreg::is_forked();
    return orSuccess;
  });
}

orError_t orDeviceIsBusy(int device, int* is_busy) {
  return guarded_result("orDeviceIsBusy", is_busy, [&] {
    if (const orError_t error = check_device(device, "orDeviceIsBusy")) return error;
    Device* active = Device::active(device);
    *is_busy = active != nullptr && !openreg::is_forked() && active->is_busy();
    return orSuccess;
  });
}

orError_t orSetDeviceCreatedFunction(orDeviceFn function) {
  return guarded([&] {
    created_function = function;
    for (int index = 0; index < OPENREG_MAX_DEVICES; ++index) {
      if (devices[static_cast<size_t>(index)].load() != nullptr && function != nullptr) {
        function(index);
      }
    }
    return orSuccess;
  });
}

orError_t orDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return guarded([&] {
    if (least == nullptr || greatest == nullptr) return fail_null("orDeviceGetStreamPriorityRange");
    *least = least_stream_priority;
    *greatest = greatest_stream_priority;
    return orSuccess;
  });
}

orError_t orDeviceSynchronize(void) {
  return guarded([] { return synchronize_index(current_device(), "orDeviceSynchronize"); });
}

orError_t orDeviceSynchronizeIndex(int device) {
  return guarded([&] { return synchronize_index(device, "orDeviceSynchronizeIndex"); });
}

orError_t orDeviceSynchronizeAll(void) {
  return guarded([] {
    if (const orError_t error = check_not_forked()) return error;
    if (const orError_t error = check_settings()) return error;
    return synchronize(active_devices(), "orDeviceSynchronizeAll");
  });
}

orError_t orDeviceTakeErrorAll(int timeout_ms) {
  return guarded([&] {
    if (is_forked()) return orSuccess;
    if (timeout_ms < 0) {
      return fail(orErrorInvalidValue,
                  concat("orDeviceTakeErrorAll: expected a time from 0, got ", timeout_ms));
    }
    const std::vector<Stream*> streams = all_streams();
    {
      static thread_local int64_t deadline_ns;
      deadline_ns = os::now_ns() + int64_t{timeout_ms} * 1'000'000;
      const wait_check::Substitution until_deadline(
          [] { return os::now_ns() < deadline_ns ? 0 : 1; });
      for (Stream* stream : streams) {
        if (stream == Worker::current_stream() || wait_check::check() != 0) continue;
        // A wait that the deadline or the end of the process ends is no error here.
        std::ignore = stream->wait(stream->submitted());
      }
    }
    const FailureRef failure = take_first_failure(streams);
    return is_news(failure) ? report(failure) : orSuccess;
  });
}

orError_t orSetWaitCheck(orWaitCheckFn check) {
  wait_check::check = check;
  return orSuccess;
}

orError_t orIsForkedChild(int* is_forked) {
  return guarded_result("orIsForkedChild", is_forked, [&] {
    *is_forked = openreg::is_forked() ? 1 : 0;
    return orSuccess;
  });
}

orError_t orDeviceCanAccessPeer(int* can_access, int device, int peer) {
  return guarded_result("orDeviceCanAccessPeer", can_access, [&] {
    for (int index : {device, peer}) {
      if (const orError_t error = check_device(index, "orDeviceCanAccessPeer")) return error;
    }
    *can_access = device != peer;
    return orSuccess;
  });
}

}  // extern "C"
