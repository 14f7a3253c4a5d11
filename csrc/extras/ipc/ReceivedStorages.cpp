#include "csrc/extras/ipc/ReceivedStorages.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ScopeExit.h>
#include <openreg/device.h>
#include <openreg/memory.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/extras/ipc/StorageSharing.h"
#include "csrc/memory/Allocator.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Launch.h"

namespace c10::openreg {
namespace {

// The DataPtr context of a received storage.
struct Received {
  std::shared_ptr<ReceivedMemory> memory;
  Mutex mutex;
  // The streams whose work must complete before the memory is released.
  std::unordered_set<OpenRegStream> used_on OPENREG_GUARDED_BY(mutex);
};

constexpr size_t kLeastStorages = 64;

struct Storages {
  Mutex mutex;
  std::unordered_map<void*, c10::weak_intrusive_ptr<StorageImpl>> by_address
      OPENREG_GUARDED_BY(mutex);
  std::vector<std::pair<OpenRegStream, std::shared_ptr<ReceivedMemory>>> deferred
      OPENREG_GUARDED_BY(mutex);
  size_t next_check OPENREG_GUARDED_BY(mutex) =
      kLeastStorages;  // the size at which to look for dead ones
};

// Leaked, because storages may be freed by static destructors.
Storages& storages() {
  static auto* instance = new Storages();
  return *instance;
}

// Keeps the memory until the current work of the stream is done.
void releaseAfter(const OpenRegStream& stream, std::shared_ptr<ReceivedMemory> memory) {
  if (!stream.isAlive()) {
    OPENREG_CHECK(orDeviceSynchronizeIndex(stream.device_index()));  // cannot be interrupted
    return;
  }
  if (stream.isCapturing()) {
    const Lock lock(storages().mutex);
    storages().deferred.emplace_back(stream, std::move(memory));
    return;
  }
  // The destruction of the closure releases the memory, which also happens if the stream has
  // failed.
  launchKernel<"release of received memory">(stream, [memory = std::move(memory)] {});
}

void freeReceived(void* context) {
  const std::unique_ptr<Received> received(static_cast<Received*>(context));
  if (received == nullptr) {
    return;
  }
  std::shared_ptr<ReceivedMemory> memory = std::move(received->memory);
  std::unordered_set<OpenRegStream> used_on;
  {
    const Lock lock(received->mutex);
    used_on.swap(received->used_on);
  }
  try {
    if (!isInBadFork()) {
      for (const OpenRegStream& stream : used_on) {
        releaseAfter(stream, memory);
      }
      return;
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "openreg: memory of another process is kept until this one ends: %s\n",
                 error.what_without_backtrace());
  }
  // Leaked: it is unknown when it is no longer used, or, in a forked child, it belongs to the
  // parent.
  new std::shared_ptr<ReceivedMemory>(std::move(memory));
}

void recordStreamOfReceived(void* context, const OpenRegStream& stream) {
  auto* received = static_cast<Received*>(context);
  const Lock lock(received->mutex);
  received->used_on.insert(stream);
}

struct Registration {
  Registration() { foreignMemory() = {&freeReceived, &recordStreamOfReceived}; }
} storages_registration;

// The storage at an address; null if there is none.
c10::intrusive_ptr<StorageImpl> findStorage(void* data) OPENREG_REQUIRES(storages().mutex) {
  const auto found = storages().by_address.find(data);
  return found == storages().by_address.end() ? nullptr : found->second.lock();
}

void forgetDeadStorages() OPENREG_REQUIRES(storages().mutex) {
  if (storages().by_address.size() < storages().next_check) {
    return;
  }
  std::erase_if(storages().by_address, [](const auto& entry) { return entry.second.expired(); });
  storages().next_check = std::max(kLeastStorages, 2 * storages().by_address.size());
}

}  // namespace

ReceivedMemory::ReceivedMemory(const StorageMessage& message)
    : device_(message.deviceHere()), size_(message.size) {
  OPENREG_CHECK(orIpcOpenMemHandle(&base_, message.memory, 0));
  auto end = c10::make_scope_exit([&] { OPENREG_WARN_IF_FAILED(orIpcCloseMemHandle(base_)); });
  // The numbers in the message come from another process, so they are checked.
  orPointerAttributes attributes;
  OPENREG_CHECK(orPointerGetAttributes(&attributes, base_));
  const Device actual(kDeviceType, static_cast<DeviceIndex>(attributes.device));
  TORCH_CHECK(actual == device_, "receiving a storage: expected memory of ", device_,
              ", as the message says, got memory of ", actual);
  const uint64_t shared = attributes.allocationSize;
  TORCH_CHECK(message.size <= shared && message.offset <= shared - message.size,
              "receiving a storage: expected a part of the ", shared,
              " bytes that were shared, got ", message.size, " bytes at ", message.offset);
  data_ = static_cast<char*>(base_) + message.offset;
  OPENREG_CHECK(orIpcLeaseTake(&lease_, message.lease));
  end.release();
}

ReceivedMemory::~ReceivedMemory() {
  OPENREG_WARN_IF_FAILED(orIpcCloseMemHandle(base_));
  OPENREG_WARN_IF_FAILED(orIpcLeaseEnd(lease_));
}

Storage storageOf(std::shared_ptr<ReceivedMemory> memory) {
  void* const data = memory->data();
  const size_t size = memory->size();
  const Device device = memory->device();
  const OpenRegStream stream = getCurrentOpenRegStream(device.index());
  c10::intrusive_ptr<StorageImpl> known;  // if this frees it, then after the lock
  const Lock lock(storages().mutex);
  known = findStorage(data);
  if (known && known->nbytes() == size && known->data() == data) {
    recordStreamOfReceived(known->data_ptr().get_context(), stream);
    return Storage(known);
  }
  auto received = std::make_unique<Received>();
  received->memory = std::move(memory);
  recordStreamOfReceived(received.get(), stream);
  DataPtr pointer(data, received.release(), &freeReceived, device);
  Storage storage(Storage::use_byte_size_t(), size, std::move(pointer),
                  c10::getDeviceAllocator(kDeviceType), /*resizable=*/false);
  forgetDeadStorages();
  storages().by_address.insert_or_assign(data, storage.getWeakStorageImpl());
  return storage;
}

void releaseDeferred() {
  std::vector<std::pair<OpenRegStream, std::shared_ptr<ReceivedMemory>>> deferred;
  {
    const Lock lock(storages().mutex);
    deferred.swap(storages().deferred);
  }
  for (auto& [stream, memory] : deferred) {
    releaseAfter(stream, std::move(memory));
  }
}

bool isReceived(const Storage& storage) {
  return storage && storage.data_ptr().get_deleter() == &freeReceived;
}

}  // namespace c10::openreg
