#include "csrc/extras/ipc/SentStorages.h"

#include <openreg/ipc.h>

#include <algorithm>
#include <vector>

#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {
namespace {

// With fewer messages, checking whether holders are alive is not worth its cost.
constexpr size_t kLeastMessages = 256;

}  // namespace

// Leaked, because storages may be freed by static destructors.
SentStorages& SentStorages::get() {
  static auto* instance = new SentStorages();
  return *instance;
}

void SentStorages::keep(unsigned long long lease, Storage storage, OpenRegEvent event) {
  observe(&Observer::memoryWrite, storage.data());  // the receiver may write it
  const Lock lock(mutex_);
  StorageImpl* impl = storage.unsafeGetStorageImpl();
  Resizing& resizing = resizing_[impl];
  if (resizing.messages++ == 0) {
    resizing.was_resizable = impl->resizable();
    impl->set_resizable(false);
  }
  sent_.emplace(lease, Sent{std::move(storage), std::move(event)});
}

std::optional<Storage> SentStorages::find(unsigned long long lease) {
  const Lock lock(mutex_);
  const auto found = sent_.find(lease);
  return found == sent_.end() ? std::nullopt : std::optional<Storage>(found->second.storage);
}

std::pair<Storage, OpenRegEvent> SentStorages::takeBack(unsigned long long lease) {
  OPENREG_CHECK(orIpcLeaseRevoke(lease));
  const Lock lock(mutex_);
  Sent sent = remove(lease);
  return {std::move(sent.storage), std::move(sent.event)};
}

size_t SentStorages::collect(bool checks_holders) {
  std::vector<unsigned long long> ended;
  {
    const Lock lock(mutex_);
    if (sent_.size() >= std::max(next_check_, kLeastMessages)) {
      checks_holders = true;
    }
  }
  OPENREG_CHECK(orIpcLeaseCollect(
      [](unsigned long long lease, void* leases) {
        static_cast<std::vector<unsigned long long>*>(leases)->push_back(lease);
      },
      &ended, checks_holders ? 1 : 0));
  std::vector<Sent> unused;  // freed after the lock
  const Lock lock(mutex_);
  for (const unsigned long long lease : ended) {
    unused.push_back(remove(lease));
  }
  if (checks_holders) {
    next_check_ = 2 * sent_.size();
  }
  return sent_.size();
}

SentStorages::Sent SentStorages::remove(unsigned long long lease) {
  auto node = sent_.extract(lease);
  TORCH_INTERNAL_ASSERT(!node.empty(), "nothing was sent with lease ", lease);
  StorageImpl* impl = node.mapped().storage.unsafeGetStorageImpl();
  const auto resizing = resizing_.find(impl);
  if (--resizing->second.messages == 0) {
    impl->set_resizable(resizing->second.was_resizable);
    resizing_.erase(resizing);
  }
  return std::move(node.mapped());
}

}  // namespace c10::openreg
