#include "csrc/extras/dry_run/Workspaces.h"

#include <openreg/device.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/core/OperatorName.h"
#include "csrc/extras/dry_run/MemoryRecord.h"
#include "csrc/extras/dry_run/TemporaryMemory.h"
#include "csrc/memory/Allocator.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {
namespace {

// Operators, without the names of their overloads, that call cuBLAS on CUDA. Source:
// aten/src/ATen/native/cuda/Blas.cpp and aten/src/ATen/native/cuda/LinearAlgebra.cpp of PyTorch.
constexpr std::array<std::string_view, 11> kProducts = {
    "aten::_addmm_activation",
    "aten::_int_mm",
    "aten::_scaled_mm",
    "aten::addbmm",
    "aten::addmm",
    "aten::addmv",
    "aten::baddbmm",
    "aten::bmm",
    "aten::dot",
    "aten::mm",
    "aten::vdot",
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

void* allocateWorkspace(size_t nbytes, const OpenRegStream& stream) {
  void* const address = rawAllocate(nbytes, stream);
  noteBlockUse(reinterpret_cast<uintptr_t>(address), BlockUse::Workspace);
  return address;
}

// What a kernel takes for a while. It has all of it at the same time, and gives it back after its
// launch.
class TemporaryBlocks {
 public:
  TemporaryBlocks(const OpenRegStream& stream, const BlockSizes& sizes) {
    for (const size_t size : sizes) {
      blocks_.emplace_back(allocateWorkspace(size, stream), &rawFree);
    }
  }

 private:
  SmallVector<std::unique_ptr<void, void (*)(void*)>, 8> blocks_;
};

class Workspaces final : public Observer {
 public:
  Workspaces(size_t cublas_size, GpuShape gpu) : cublas_size_(cublas_size), gpu_(gpu) {}

  Verdict kernelAccess(const OpenRegStream& stream, const char* kernel, ArrayRef<Operand> operands,
                       bool /*schema_only*/) override {
    const Needs needs = needsOf(kernel);
    if (needs.is_product && cublas_size_ != 0) {
      thread_local HandlesOfThread handles;
      allocate(stream, handles.of(stream.device_index()));
    }
    if (needs.rule != nullptr) {
      const TemporaryBlocks blocks(stream, needs.rule(operands, gpu_));
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

  struct Needs {
    bool is_product = false;
    TemporaryMemoryRule rule = nullptr;
  };

  // Names live as long as the process, so each is compared once.
  Needs needsOf(const char* kernel) {
    const Lock lock(mutex_);
    const auto [place, is_new] = needs_.try_emplace(kernel);
    if (is_new) {
      const std::string_view name = withoutOverload(kernel);
      place->second = {std::ranges::find(kProducts, name) != kProducts.end(),
                       temporaryMemoryRule(name)};
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
      address = allocateWorkspace(cublas_size_, stream);
    } catch (...) {
      const Lock lock(mutex_);
      workspaces_.erase(key);
      throw;
    }
    const Lock lock(mutex_);
    workspaces_[key] = address;
  }

  const size_t cublas_size_;
  const GpuShape gpu_;
  Mutex mutex_;
  std::unordered_map<const char*, Needs> needs_ OPENREG_GUARDED_BY(mutex_);
  std::map<Key, void*> workspaces_ OPENREG_GUARDED_BY(mutex_);
};

// Set once, before threads launch.
Workspaces* the_workspaces = nullptr;

}  // namespace

void startWorkspaces(size_t cublas_size, int64_t multiprocessors) {
  the_workspaces = new Workspaces(cublas_size, {multiprocessors});
  addObserver(*the_workspaces);
}

void clearWorkspaces() {
  if (the_workspaces != nullptr) {
    the_workspaces->clear();
  }
}

}  // namespace c10::openreg
