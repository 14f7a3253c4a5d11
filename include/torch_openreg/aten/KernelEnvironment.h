// The thread state in which a CPU kernel runs.
//
// Note [The environment of a kernel]
// A kernel is bit-identical to the CPU's only if it runs as the CPU would run it: with its caller's
// settings, number of intra-op threads and floating-point mode, below autograd, and without
// autocast, because the dispatcher has handled both. The calling thread captures the variable part
// (KernelEnvironment) and the worker enters it; both run kernels in a CpuKernelScope. Only these
// classes define what an environment consists of.
//
// Note [Threads of backward passes]
// On the CPU, a backward pass runs on the thread that called it. That of a device runs on a thread
// of torch's autograd engine, whose number of intra-op threads and floating-point mode are those of
// the moment when torch started it, at the process's first backward pass. So the engine's threads
// take both from the thread that called backward last, each time they launch a kernel. Of two
// threads with different numbers that call backward at the same time, both passes may have either.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// docs: kernel-environment
class OPENREG_EXPORT KernelEnvironment {
 public:
  // The environment of the calling thread; on a thread of the autograd engine, which gets it too,
  // that of the thread that called backward. Costs a few loads.
  static KernelEnvironment current();

  // Makes this the environment of the calling thread, which must run only kernels: the worker of a
  // stream.
  // Errors: throws if the thread cannot have the settings; see Note [Settings at the call].
  void enter() const;

  // Call on the launching thread after each launch of a kernel: see Note [Idle teams] in
  // csrc/aten/cpu/OpenMpTeam.h. Not called in a forked child, because launches fail there.
  static void noteLaunched();

  bool operator==(const KernelEnvironment&) const = default;

  // As two numbers, for the keys of tables.
  uint64_t settings() const { return settings_; }
  uint64_t thread() const {
    return uint64_t(uint32_t(num_threads_)) | uint64_t(float_mode_) << 32 |
           uint64_t(is_grad_enabled_) << 48;
  }

 private:
  class Worker;

  uint64_t settings_ = 0;         // of the process: Note [Settings at the call]
  int32_t num_threads_ = 0;       // as at::get_num_threads(); determines how reductions split work
  uint16_t float_mode_ = 0;       // treatment of denormal numbers, and rounding
  bool is_grad_enabled_ = false;  // some kernels save values for a backward only if it is
};
// docs: end

// During its lifetime, operators called on this thread run as in a CPU kernel: below autograd, and
// without a second autocast.
class CpuKernelScope {
 public:
  CpuKernelScope() : without_autocast_(c10::autocast_dispatch_keyset) {}

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard without_autocast_;
};

// The same for a kernel that runs on the thread that calls its operator. All OpenMP threads of the
// kernel have the caller's floating-point mode, as on a worker; the destructor restores their
// modes. Scopes of a thread may nest.
class OPENREG_EXPORT HostKernelScope {
 public:
  HostKernelScope();
  ~HostKernelScope();
  HostKernelScope(const HostKernelScope&) = delete;
  HostKernelScope& operator=(const HostKernelScope&) = delete;

 private:
  CpuKernelScope scope_;
  int team_size_ = 0;  // of the team whose mode was set; 0 for none
};

}  // namespace at::openreg
