#include "torch_openreg/aten/KernelEnvironment.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <atomic>

#include "csrc/aten/kernel/KernelSettings.h"

namespace at::openreg {
namespace {

#if defined(__x86_64__)

constexpr uint32_t kFloatModeBits = 0xE040;  // flush to zero, rounding, denormals are zero

uint16_t floatMode() { return static_cast<uint16_t>(_mm_getcsr() & kFloatModeBits); }

void setFloatMode(uint16_t mode) { _mm_setcsr((_mm_getcsr() & ~kFloatModeBits) | mode); }

#elif defined(__aarch64__)

constexpr int kFloatModeShift = 16;
constexpr uint64_t kFloatModeBits = 0x01C80000;  // flush to zero, rounding, the same for half

uint64_t controlRegister() {
  uint64_t value = 0;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}

uint16_t floatMode() {
  return static_cast<uint16_t>((controlRegister() & kFloatModeBits) >> kFloatModeShift);
}

void setFloatMode(uint16_t mode) {
  const uint64_t value = (controlRegister() & ~kFloatModeBits) | uint64_t(mode) << kFloatModeShift;
  asm volatile("msr fpcr, %0" : : "r"(value));
}

#endif

// at::set_num_threads sets the process's number, too, and empties caches of all threads. These set
// that of the calling thread. They are those of the libraries that torch computes with; null where
// it has no such library.
class ThreadCountSetters {
 public:
  ThreadCountSetters() {
    Dl_info torch{};
    dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &torch);
    void* library = dlopen(torch.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    TORCH_CHECK(library != nullptr, "openreg: cannot find the library of at::get_num_threads()");
    set_open_mp_ = reinterpret_cast<Setter>(dlsym(library, "omp_set_num_threads"));
    set_mkl_ = reinterpret_cast<CountingSetter>(dlsym(library, "MKL_Set_Num_Threads_Local"));
    if (auto* count = reinterpret_cast<Counter>(dlsym(library, "MKL_Get_Max_Threads"))) {
      const int previous = set_mkl_ == nullptr ? 0 : set_mkl_(0);
      mkl_default_ = count();
      if (previous != 0) {
        set_mkl_(previous);
      }
    }
    dlclose(library);
  }

  void operator()(int count) const {
    if (set_open_mp_ != nullptr) {
      set_open_mp_(count);
    }
    if (set_mkl_ != nullptr) {
      // A number of its own, even the same, makes MKL start threads within a parallel region, too.
      set_mkl_(count == mkl_default_ ? 0 : count);
    }
  }

 private:
  using Setter = void (*)(int);
  using CountingSetter = int (*)(int);  // returns the number before; 0 is none of its own
  using Counter = int (*)();

  Setter set_open_mp_;
  CountingSetter set_mkl_;
  int mkl_default_ = 0;  // of threads without a number of their own
};

void setThreadCountOfThisThread(int count) {
  static const ThreadCountSetters set;
  set(count);
}

}  // namespace

// Note [Teams]
// A kernel shares its work with the worker's OpenMP team. Its threads have settings and a
// floating-point mode of their own, which would be the process's and those of whoever started
// them. Programs that never change one need not care, and starting a team for each worker costs
// threads. So teams get the kernel's environment from the first time on that a change was seen.
class KernelEnvironment::Worker {
 public:
  Worker() { at::get_num_threads(); }  // torch initializes the number of a thread at its first use

  void enter(const KernelEnvironment& wanted) {
    const bool is_changed = haveChanged(wanted);
    if (C10_LIKELY(wanted == current_ && (has_team_ || !is_changed))) {
      return;
    }
    if (wanted.num_threads_ != current_.num_threads_) {
      setThreadCountOfThisThread(wanted.num_threads_);
    }
    c10::GradMode::set_enabled(wanted.is_grad_enabled_);
    enterOnThread(wanted);
    if (is_changed) {
      at::parallel_for(0, wanted.num_threads_, /*grain_size=*/1,
                       [&](int64_t /*begin*/, int64_t /*end*/) { enterOnThread(wanted); });
    }
    has_team_ = is_changed;
    current_ = wanted;
  }

 private:
  static void enterOnThread(const KernelEnvironment& wanted) {
    setFloatMode(wanted.float_mode_);
    useSettings(wanted.settings_);
  }

  // Whether the process has ever had other settings or modes than the first kernel's.
  static bool haveChanged(const KernelEnvironment& wanted) {
    static std::atomic<bool> have_changed = false;
    static const KernelEnvironment first = wanted;
    if (C10_LIKELY(!have_changed.load(std::memory_order_relaxed)) &&
        (wanted.settings_ != first.settings_ || wanted.float_mode_ != first.float_mode_ ||
         currentSettings() != first.settings_)) {
      have_changed.store(true, std::memory_order_relaxed);
    }
    return have_changed.load(std::memory_order_relaxed);
  }

  const CpuKernelScope scope_;
  KernelEnvironment current_;
  bool has_team_ = false;
};

KernelEnvironment KernelEnvironment::current() {
  KernelEnvironment environment;
  environment.settings_ = currentSettings();
  environment.num_threads_ = at::get_num_threads();
  environment.float_mode_ = floatMode();
  environment.is_grad_enabled_ = c10::GradMode::is_enabled();
  return environment;
}

void KernelEnvironment::enter() const {
  static thread_local Worker worker;
  worker.enter(*this);
}

}  // namespace at::openreg
