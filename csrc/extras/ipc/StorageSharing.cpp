#include "csrc/extras/ipc/StorageSharing.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/ScopeExit.h>
#include <openreg/openreg.h>

#include <optional>

#include "csrc/extras/ipc/ReceivedStorages.h"
#include "csrc/extras/ipc/SentStorages.h"
#include "csrc/extras/ipc/StorageMessage.h"
#include "csrc/memory/Allocator.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {
namespace {

class Collector final : public Observer {
 public:
  void memoryShortage(DeviceIndex /*device*/) override { collectShared(); }
};

[[maybe_unused]] const bool is_collector_added = [] {
  addObserver(*new Collector, ObservedEvents::Shortages);
  return true;
}();

// Records an event after all work that is known to use the storage. See Note [Order across
// processes].
OpenRegEvent recordUses(const Storage& storage, const OpenRegStream& stream) {
  for (const OpenRegStream& other : streamsOf(storage.data_ptr())) {
    waitForStream(stream, other);
  }
  OpenRegEvent event(orEventDisableTiming | orEventInterprocess);
  event.record(stream);
  return event;
}

void checkSharable(const Storage& storage) {
  TORCH_CHECK(storage.device_type() == kDeviceType, "_share_", kDeviceType, "_: only available on ",
              c10::DeviceTypeName(kDeviceType),
              "\nExpected a storage of this device type, got one of ", storage.device());
  TORCH_CHECK(!isReceived(storage),
              "sharing a storage: this one was received from another process, and only the process "
              "that owns it can share it; share a clone() of the tensor");
}

void checkNotPartOfGraph(const OpenRegStream& stream, const char* operation) {
  TORCH_CHECK(!stream.isCapturing(), operation,
              ": the current stream is capturing a graph, and a message is not part of one");
}

// The offset of a storage in its shared memory block, as allocated.
uint64_t offsetOf(const void* data) {
  orPointerAttributes attributes;
  OPENREG_CHECK(orPointerGetAttributes(&attributes, data));
  return static_cast<uint64_t>(static_cast<const char*>(data) -
                               static_cast<const char*>(attributes.allocationBase));
}

// Checks a message that returned through another process.
void checkDescribes(const StorageMessage& message, const Storage& sent) {
  const uint64_t offset = offsetOf(sent.data());
  TORCH_CHECK(message.size == sent.nbytes() && message.offset == offset &&
                  message.deviceHere() == sent.device(),
              "receiving a storage: expected the ", sent.nbytes(), " bytes at ", offset, " of ",
              sent.device(), " that this process sent, got ", message.size, " bytes at ",
              message.offset, " of ", message.deviceHere());
}

Storage receiveOwn(const StorageMessage& message, unsigned long long lease,
                   const OpenRegStream& stream) {
  if (const std::optional<Storage> sent = SentStorages::get().find(lease)) {
    checkDescribes(message, *sent);
  }
  auto [storage, event] = SentStorages::get().takeBack(lease);
  event.block(stream);
  return std::move(storage);
}

void waitForSender(const orIpcEventHandle_t& handle, const OpenRegStream& stream) {
  orEvent_t event = nullptr;
  OPENREG_CHECK(orIpcOpenEventHandle(&event, handle));
  const orError_t error = orStreamWaitEvent(stream.stream(), event, 0);
  if (error == orSuccess) {
    OPENREG_CHECK(orEventDestroy(event));
    return;
  }
  auto destroy = c10::make_scope_exit([&] { OPENREG_WARN_IF_FAILED(orEventDestroy(event)); });
  OPENREG_CHECK_RESULT(error, "orStreamWaitEvent");
}

}  // namespace

// docs: share-storage
std::string shareStorage(const Storage& storage) {
  checkSharable(storage);
  SentStorages::get().collect(/*checks_holders=*/false);
  StorageMessage message{};
  message.device = storage.device().index();
  message.size = storage.nbytes();
  if (message.size == 0) {
    return message.write();
  }
  const c10::DeviceGuard guard(storage.device());
  const OpenRegStream stream = getCurrentOpenRegStream();
  checkNotPartOfGraph(stream, "sharing a storage");
  void* data = storage.mutable_data();
  OPENREG_CHECK(orIpcGetMemHandle(&message.memory, data));
  message.offset = offsetOf(data);
  OpenRegEvent event = recordUses(storage, stream);
  OPENREG_CHECK(orIpcGetEventHandle(&message.event, event.event()));
  unsigned long long lease = 0;
  OPENREG_CHECK(orIpcLeaseGrant(&lease, &message.lease));
  SentStorages::get().keep(lease, storage, std::move(event));
  return message.write();
}
// docs: end

// docs: receive-storage
Storage receiveStorage(const std::string& bytes) {
  const StorageMessage message = StorageMessage::read(bytes);
  releaseDeferred();
  const c10::DeviceGuard guard(message.deviceHere());
  c10::Allocator* allocator = c10::GetAllocator(kDeviceType);
  if (message.size == 0) {
    return Storage(Storage::use_byte_size_t(), 0, allocator->allocate(0), allocator, true);
  }
  const OpenRegStream stream = getCurrentOpenRegStream();
  checkNotPartOfGraph(stream, "receiving a storage");
  unsigned long long own_lease = 0;
  OPENREG_CHECK(orIpcLeaseFind(&own_lease, message.lease));
  if (own_lease != 0) {
    return receiveOwn(message, own_lease, stream);
  }
  auto memory = std::make_shared<ReceivedMemory>(message);
  waitForSender(message.event, stream);
  return storageOf(std::move(memory));
}
// docs: end

size_t collectShared() {
  releaseDeferred();
  return SentStorages::get().collect(/*checks_holders=*/true);
}

}  // namespace c10::openreg
