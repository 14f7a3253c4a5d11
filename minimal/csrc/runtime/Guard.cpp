// Steps 2 and 4 of docs/bring_up.md, the guard. In full: csrc/core/GuardImpl.cpp.
#include <c10/core/CachingDeviceAllocator.h>

#include <tuple>

#include "Event.h"

namespace chip {

// What c10::DeviceGuard, torch.Stream, torch.Event and torch.accelerator call.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }

  // Devices. One without an index is the current one.
  static DeviceIndex indexOf(Device d) { return d.has_index() ? d.index() : current_device(); }
  Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(Device device) const override { set_device(indexOf(device)); }
  void uncheckedSetDevice(Device d) const noexcept override {
    std::ignore = orSetDevice(d.index());
  }
  Device exchangeDevice(Device d) const override { return {kType, exchange_device(indexOf(d))}; }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }  // all dtypes
  void synchronizeDevice(DeviceIndex device) const override {
    wait([device] { return orDeviceSynchronizeIndex(device); });
  }

  // Streams.
  Stream getStream(Device device) const override { return currentStream(indexOf(device)); }
  Stream getDefaultStream(Device device) const override { return makeStream(indexOf(device), 0); }
  Stream getStreamFromGlobalPool(Device device, bool is_high) const override {
    return streamFromPool(indexOf(device), is_high ? -1 : 0);
  }
  Stream getNewStream(Device d, int p) const override { return streamFromPool(indexOf(d), p); }
  Stream exchangeStream(Stream next) const override {
    handleOf(next);  // raises if there is no such stream
    return makeStream(next.device_index(),
                      std::exchange(current_ids.at(next.device_index()), next.id()));
  }
  void* getStreamNativeHandle(Stream stream) const override { return handleOf(stream); }
  bool queryStream(const Stream& s) const override { return isDone(orStreamQuery(handleOf(s))); }
  void synchronizeStream(const Stream& stream) const override {
    wait([handle = handleOf(stream)] { return orStreamSynchronize(handle); });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    c10::getDeviceAllocator(kType)->recordStream(data, stream);
  }

  // Events. One that was never recorded is null, and is done.
  void record(void** event, const Stream& s, DeviceIndex, c10::EventFlag flag) const override {
    auto* handle = reinterpret_cast<orEvent_t*>(event);
    if (*handle == nullptr) {
      const bool is_timed = flag == c10::EventFlag::BACKEND_DEFAULT;
      check(orEventCreateWithFlags(handle, is_timed ? orEventDefault : orEventDisableTiming));
    }
    check(orEventRecord(*handle, handleOf(s)));
  }
  void block(void* event, const Stream& stream) const override {  // the stream waits, not the host
    if (event != nullptr) check(orStreamWaitEvent(handleOf(stream), handleOf(event), 0));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || isDone(orEventQuery(handleOf(event)));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait([event] { return orEventSynchronize(handleOf(event)); });
  }
  double elapsedTime(void* start, void* end, DeviceIndex) const override {
    float milliseconds = 0;
    check(orEventElapsedTime(&milliseconds, handleOf(start), handleOf(end)));
    return milliseconds;
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    std::ignore = orEventDestroy(handleOf(event));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace chip
