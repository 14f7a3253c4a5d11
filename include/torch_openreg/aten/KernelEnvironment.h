// What a kernel of the CPU finds around it, besides its arguments.
//
// Note [The environment of a kernel]
// A kernel is bit-identical to the CPU's only if it runs as the CPU would run it: with the
// settings, the number of intra-op threads and the floating-point mode that its caller has, below
// autograd, and without autocast, as the dispatcher has dealt with both. The calling thread
// captures what varies (KernelEnvironment) and the worker enters it; both run kernels in a
// CpuKernelScope. These are the only places that know what an environment consists of.
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
  // That of the calling thread. Costs some loads.
  static KernelEnvironment current();

  // Makes it the environment of the calling thread, which runs kernels and nothing else: the
  // worker of a stream.
  // Errors: throws if the thread cannot have the settings; see Note [Settings at the call].
  void enter() const;

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
  int32_t num_threads_ = 0;       // as at::get_num_threads(); reductions split work by it
  uint16_t float_mode_ = 0;       // treatment of denormal numbers, and rounding
  bool is_grad_enabled_ = false;  // some kernels save what a backward needs only if it is
};
// docs: end

// Behind each launch of a kernel, for the thread that launches: see Note [Idle teams] in
// csrc/aten/kernel/ThreadTeam.h. In a forked child, whose threads are gone, nothing launches.
OPENREG_EXPORT void noteKernelLaunched();

// While it lives, operators that the calling thread calls are those of a CPU kernel: below
// autograd, and not autocast a second time.
class CpuKernelScope {
 public:
  CpuKernelScope() : without_autocast_(c10::autocast_dispatch_keyset) {}

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard without_autocast_;
};

// The same, for a kernel that computes on the thread that calls its operator. All OpenMP threads of
// the kernel have the caller's floating-point mode, as if a worker ran it; afterwards, they have
// again what they had. Scopes of a thread nest.
class OPENREG_EXPORT HostKernelScope {
 public:
  HostKernelScope();
  ~HostKernelScope();
  HostKernelScope(const HostKernelScope&) = delete;
  HostKernelScope& operator=(const HostKernelScope&) = delete;

 private:
  CpuKernelScope scope_;
  int team_size_ = 0;  // of the team that has got the mode; 0 for none
};

}  // namespace at::openreg
