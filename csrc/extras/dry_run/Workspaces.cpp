#include "csrc/extras/dry_run/Workspaces.h"

#include <openreg/device.h>

#include <array>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/extras/dry_run/MemoryRecord.h"
#include "csrc/memory/Allocator.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {
namespace {

// Kernels that call cuBLAS on CUDA.
constexpr std::array<std::string_view, 9> kProducts = {
    "aten::addbmm",      "aten::addmm.out", "aten::addmv.out",
    "aten::baddbmm.out", "aten::bmm.out",   "aten::dot",
    "aten::mm.out",      "aten::vdot",      "aten::_addmm_activation.out",
};

// The numbers of a device's handles that no thread has.
class HandlePool {
 public:
  int take() {
    const Lock lock(mutex_);
    if (free_.empty()) {
      return count_++;
    }
    return free_.extract(free_.begin()).value();
  }

  void giveBack(int handle) {
    const Lock lock(mutex_);
    free_.insert(handle);
  }

 private:
  Mutex mutex_;
  std::set<int> free_ OPENREG_GUARDED_BY(mutex_);
  int count_ OPENREG_GUARDED_BY(mutex_) = 0;
};

// Leaked, as threads end while the process does.
HandlePool& poolOf(DeviceIndex device) {
  static auto* const pools = new std::array<HandlePool, OPENREG_MAX_DEVICES>;
  return pools->at(static_cast<size_t>(device));
}

class HandlesOfThread {
 public:
  HandlesOfThread() = default;
  HandlesOfThread(const HandlesOfThread&) = delete;
  HandlesOfThread& operator=(const HandlesOfThread&) = delete;
  ~HandlesOfThread() {
    for (const auto& [device, handle] : handles_) {
      poolOf(device).giveBack(handle);
    }
  }

  int of(DeviceIndex device) {
    const auto [place, is_new] = handles_.try_emplace(device, 0);
    if (is_new) {
      place->second = poolOf(device).take();
    }
    return place->second;
  }

 private:
  std::map<DeviceIndex, int> handles_;
};

class Workspaces final : public Observer {
 public:
  explicit Workspaces(size_t nbytes) : nbytes_(nbytes) {}

  Verdict kernelAccess(const OpenRegStream& stream, const char* kernel,
                       ArrayRef<Operand> /*operands*/, bool /*schema_only*/) override {
    if (isProduct(kernel)) {
      thread_local HandlesOfThread handles;
      allocate(stream, handles.of(stream.device_index()));
    }
    return Verdict::Run;
  }

  void clear() {
    std::map<Key, void*> workspaces;
    {
      const Lock lock(mutex_);
      workspaces.swap(workspaces_);
    }
    for (const auto& [key, address] : workspaces) {
      rawFree(address);
    }
  }

 private:
  using Key = std::pair<int, const void*>;  // a handle, and a stream of its device

  // Names live as long as the process, so each is compared once.
  bool isProduct(const char* kernel) {
    const Lock lock(mutex_);
    const auto [place, is_new] = products_.try_emplace(kernel, false);
    if (is_new) {
      for (const std::string_view name : kProducts) {
        place->second = place->second || name == kernel;
      }
    }
    return place->second;
  }

  void allocate(const OpenRegStream& stream, int handle) {
    const Key key{handle, stream.stream()};
    {
      const Lock lock(mutex_);
      if (!workspaces_.try_emplace(key, nullptr).second) {
        return;
      }
    }
    void* address = nullptr;
    try {
      address = rawAllocate(nbytes_, stream);
    } catch (...) {
      const Lock lock(mutex_);
      workspaces_.erase(key);
      throw;
    }
    noteBlockUse(reinterpret_cast<uintptr_t>(address), BlockUse::Workspace);
    const Lock lock(mutex_);
    workspaces_[key] = address;
  }

  const size_t nbytes_;
  Mutex mutex_;
  std::unordered_map<const char*, bool> products_ OPENREG_GUARDED_BY(mutex_);
  std::map<Key, void*> workspaces_ OPENREG_GUARDED_BY(mutex_);
};

// Set once, before threads launch.
Workspaces* the_workspaces = nullptr;

}  // namespace

void startWorkspaces(size_t nbytes) {
  the_workspaces = new Workspaces(nbytes);
  addObserver(*the_workspaces);
}

void clearWorkspaces() {
  if (the_workspaces != nullptr) {
    the_workspaces->clear();
  }
}

}  // namespace c10::openreg
