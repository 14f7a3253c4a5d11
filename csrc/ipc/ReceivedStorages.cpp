#include "csrc/ipc/ReceivedStorages.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "csrc/ipc/StorageSharing.h"
#include "csrc/memory/StreamUses.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Launch.h"

namespace c10::openreg {
namespace {

// The context of a received storage's DataPtr.
struct Received {
  std::shared_ptr<ReceivedMemory> memory;
  std::mutex mutex;                           // guards what follows
  std::unordered_set<OpenRegStream> used_on;  // the streams that must pass before it is released
};

void freeReceived(void* context);

struct Storages {
  std::mutex mutex;  // guards everything below
  std::unordered_map<void*, c10::weak_intrusive_ptr<StorageImpl>> by_address;
  std::vector<std::pair<OpenRegStream, std::shared_ptr<ReceivedMemory>>> deferred;
};

// Leaked: storages may be freed by static destructors.
Storages& storages() {
  static auto* instance = new Storages();
  return *instance;
}

// Keeps the memory until the work now on the stream is done.
void releaseAfter(const OpenRegStream& stream, std::shared_ptr<ReceivedMemory> memory) {
  if (!stream.isAlive()) {
    synchronizeDevice(stream.device_index());
    return;
  }
  if (stream.isCapturing()) {
    const std::lock_guard<std::mutex> lock(storages().mutex);
    storages().deferred.emplace_back(stream, std::move(memory));
    return;
  }
  // Destroying the closure is what counts: that happens also if the stream has failed.
  launchKernel<"release of received memory">(stream, [memory = std::move(memory)] {});
}

void freeReceived(void* context) {
  const std::unique_ptr<Received> received(static_cast<Received*>(context));
  if (received == nullptr) {
    return;
  }
  std::shared_ptr<ReceivedMemory> memory = std::move(received->memory);
  try {
    if (!isInBadFork()) {
      for (const OpenRegStream& stream : received->used_on) {
        releaseAfter(stream, memory);
      }
      return;
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "openreg: memory of another process is kept until this one ends: %s\n",
                 error.what_without_backtrace());
  }
  // Nobody knows when it is no longer used, or, in a forked child, it is the parent's.
  new std::shared_ptr<ReceivedMemory>(std::move(memory));
}

void recordStreamOfReceived(void* context, const OpenRegStream& stream) {
  auto* received = static_cast<Received*>(context);
  const std::lock_guard<std::mutex> lock(received->mutex);
  received->used_on.insert(stream);
}

struct Registration {
  Registration() { foreignMemory() = {&freeReceived, &recordStreamOfReceived}; }
} registration;

// The storage at an address, null if there is none. Storages are locked.
c10::intrusive_ptr<StorageImpl> findStorage(void* data) {
  const auto found = storages().by_address.find(data);
  return found == storages().by_address.end() ? nullptr : found->second.lock();
}

void forgetDeadStorages() {
  static size_t limit = 64;  // guarded by storages().mutex
  auto& by_address = storages().by_address;
  if (by_address.size() < limit) {
    return;
  }
  std::erase_if(by_address, [](const auto& entry) { return entry.second.expired(); });
  limit = std::max<size_t>(64, 2 * by_address.size());
}

}  // namespace

ReceivedMemory::ReceivedMemory(const orIpcMemHandle_t& memory, const orIpcLeaseHandle_t& lease) {
  OPENREG_CHECK(orIpcLeaseTake(&lease_, lease));
  const orError_t error = orIpcOpenMemHandle(&base_, memory, 0);
  if (error != orSuccess) {
    // The text of the error is the runtime's until the next call.
    orIpcLease_t unused = std::exchange(lease_, nullptr);
    auto end = c10::make_scope_exit([&] { OPENREG_WARN_IF_FAILED(orIpcLeaseEnd(unused)); });
    OPENREG_CHECK_RESULT(error, "orIpcOpenMemHandle");
  }
}

ReceivedMemory::~ReceivedMemory() {
  OPENREG_WARN_IF_FAILED(orIpcCloseMemHandle(base_));
  OPENREG_WARN_IF_FAILED(orIpcLeaseEnd(lease_));
}

Storage storageOf(std::shared_ptr<ReceivedMemory> memory, void* data, size_t size,
                  DeviceIndex device) {
  const OpenRegStream stream = getCurrentOpenRegStream(device);
  c10::intrusive_ptr<StorageImpl> known;  // if this frees it, then after the lock
  const std::lock_guard<std::mutex> lock(storages().mutex);
  known = findStorage(data);
  if (known && known->nbytes() == size && known->data() == data) {
    recordStreamOfReceived(known->data_ptr().get_context(), stream);
    return Storage(known);
  }
  auto received = std::make_unique<Received>();
  received->memory = std::move(memory);
  received->used_on.insert(stream);
  DataPtr pointer(data, received.release(), &freeReceived, Device(kDeviceType, device));
  Storage storage(Storage::use_byte_size_t(), size, std::move(pointer),
                  c10::getDeviceAllocator(kDeviceType), /*resizable=*/false);
  forgetDeadStorages();
  storages().by_address.insert_or_assign(data, storage.getWeakStorageImpl());
  return storage;
}

void releaseDeferred() {
  std::vector<std::pair<OpenRegStream, std::shared_ptr<ReceivedMemory>>> deferred;
  {
    const std::lock_guard<std::mutex> lock(storages().mutex);
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
