#include "torch_openreg/aten/KernelEnvironment.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>
#include <openreg/stream.h>
#include <pthread.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <chrono>
#include <string_view>
#include <utility>

#include "csrc/aten/cpu/KernelSettings.h"
#include "csrc/aten/cpu/KernelWarnings.h"
#include "csrc/aten/cpu/OpenMpTeam.h"
#include "csrc/core/BackwardCall.h"
#include "torch_openreg/core/Exception.h"

namespace at::openreg {
namespace {

#if defined(__x86_64__)

constexpr uint32_t kFloatModeBits = 0xE040;  // flush to zero, rounding, denormals are zero

uint16_t floatMode() { return static_cast<uint16_t>(_mm_getcsr() & kFloatModeBits); }

void setFloatMode(uint16_t mode) { _mm_setcsr((_mm_getcsr() & ~kFloatModeBits) | mode); }

#elif defined(__aarch64__)

constexpr int kFloatModeShift = 16;
constexpr uint64_t kFloatModeBits = 0x01C80000;  // flush to zero, rounding, the same for float16

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

// A thread that launches kernels, and when it last released its team.
struct LaunchingThread {
  static constexpr int kLaunchesPerLook = 64;  // so that most launches do not read the clock
  static constexpr std::chrono::seconds kPause{1};

  int launches_until_look = 1;
  bool is_worker = false;  // releases its team when it is idle
  std::chrono::steady_clock::time_point next;

  void look() {
    launches_until_look = kLaunchesPerLook;
    const auto now = std::chrono::steady_clock::now();
    if (!is_worker && floatMode() != 0) {
      launches_until_look = 1;  // the first launch in the default mode checks, and releases it
      next = now;
      return;
    }
    if (is_worker || now < next) {
      return;
    }
    next = now + kPause;
    releaseTeamOfThisThread();
  }
};

thread_local constinit LaunchingThread this_launching_thread;

// Whether a thread that calls operators has ever had a mode other than the default. Until then, the
// threads of all teams have the default mode.
std::atomic<bool> have_modes_changed = false;

uint16_t callersFloatMode() {
  const uint16_t mode = floatMode();
  if (C10_UNLIKELY(mode != 0)) {
    have_modes_changed.store(true, std::memory_order_relaxed);
  }
  return mode;
}

// What the engine's threads take from the last caller of backward, as one word. 0: none has called.
struct BackwardEnvironment {
  uint64_t word() const { return uint64_t(uint32_t(num_threads)) << 16 | float_mode; }
  static BackwardEnvironment fromWord(uint64_t word) {
    return {.num_threads = static_cast<int32_t>(word >> 16),
            .float_mode = static_cast<uint16_t>(word)};
  }

  int32_t num_threads;  // at least 1
  uint16_t float_mode;
};

std::atomic<uint64_t> environment_of_backward = 0;

// Whether the thread is one of the autograd engine's, and the word that it last took.
class AutogradThread {
 public:
  bool isOne() {
    if (C10_UNLIKELY(kind_ == Kind::kUnknown)) {
      kind_ = hasNameOfEngine() ? Kind::kAutograd : Kind::kOther;
    }
    return kind_ == Kind::kAutograd;
  }

  void takeEnvironment() {
    const uint64_t word = environment_of_backward.load(std::memory_order_relaxed);
    if (C10_LIKELY(word == taken_)) {
      return;
    }
    taken_ = word;
    const auto environment = BackwardEnvironment::fromWord(word);
    at::get_num_threads();  // torch initializes the number of a thread at its first use
    setThreadCountOfThisThread(environment.num_threads);
    setFloatMode(environment.float_mode);
  }

 private:
  enum class Kind : uint8_t { kUnknown, kAutograd, kOther };

  // torch names each thread of the engine after its device before the thread runs anything.
  static bool hasNameOfEngine() {
    char name[16] = {};
    return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
           std::string_view(name).starts_with("pt_autograd_");
  }

  uint64_t taken_ = 0;
  Kind kind_ = Kind::kUnknown;
};

thread_local constinit AutogradThread this_autograd_thread;

void takeEnvironmentOfBackward() {
  if (C10_UNLIKELY(this_autograd_thread.isOne())) {
    this_autograd_thread.takeEnvironment();
  }
}

// Note [Threads of backward passes]: the calling thread is about to run one.
void giveEnvironmentToBackward() {
  if (this_autograd_thread.isOne()) {
    return;  // a pass within a pass has the environment of the outer one
  }
  const BackwardEnvironment environment{.num_threads = at::get_num_threads(),
                                        .float_mode = callersFloatMode()};
  environment_of_backward.store(environment.word(), std::memory_order_relaxed);
}

[[maybe_unused]] const bool is_listening = [] {
  c10::openreg::setBackwardListener(&giveEnvironmentToBackward);
  return true;
}();

// For a thread of a team: the modes that it had before the nested kernels that it is running.
thread_local c10::SmallVector<uint16_t, 4> modes_before_kernels;

void enterMode(uint16_t mode) {
  modes_before_kernels.push_back(floatMode());
  setFloatMode(mode);
}

// A thread that has joined the team since then has the default mode.
void leaveMode() {
  setFloatMode(modes_before_kernels.empty() ? 0 : modes_before_kernels.pop_back_val());
}

}  // namespace

// Note [Teams]
// A kernel shares its work with the worker's OpenMP team. The threads of a team have settings and a
// floating-point mode of their own: by default those of the process, and those of the thread that
// started them. Most programs never change these, and starting a team for each worker costs
// threads. So teams get the kernel's environment only after the first change has been seen.
class KernelEnvironment::Worker {
 public:
  static Worker& ofThisThread() {
    static thread_local Worker worker;
    return worker;
  }

  void enter(const KernelEnvironment& wanted) {
    const bool is_changed = haveChanged(wanted);
    if (C10_LIKELY(wanted == current_ && (has_team_ || !is_changed))) {
      return;
    }
    // If the settings cannot be entered, the thread is left in an environment that equals no
    // kernel's.
    const KernelEnvironment previous = std::exchange(current_, KernelEnvironment());
    c10::GradMode::set_enabled(wanted.is_grad_enabled_);
    if (wanted.num_threads_ != previous.num_threads_) {
      setThreadCountOfThisThread(wanted.num_threads_);
    }
    if (wanted.num_threads_ != previous.num_threads_ || wanted.settings_ != previous.settings_ ||
        wanted.float_mode_ != previous.float_mode_) {
      enterOnThread(wanted);
      has_team_ = false;
    }
    if (is_changed && !has_team_) {
      runOnTeamOfThisThread(wanted.num_threads_, [&wanted] { enterOnThread(wanted); });
      has_team_ = true;
    }
    current_ = wanted;
  }

 private:
  Worker() {
    at::get_num_threads();  // torch initializes the number of a thread at its first use
    OPENREG_CHECK(orSetIdleFunction([] { ofThisThread().leaveTeam(); }));
    this_launching_thread.is_worker = true;
    dropKnownWarningsOfThisThread();
  }

  void leaveTeam() {
    releaseTeamOfThisThread();
    has_team_ = false;
  }

  static void enterOnThread(const KernelEnvironment& wanted) {
    setFloatMode(wanted.float_mode_);
    useSettings(wanted.settings_);
  }

  // Whether the process has ever had settings other than the first kernel's, or a mode other than
  // the default.
  static bool haveChanged(const KernelEnvironment& wanted) {
    static std::atomic<bool> have_changed = false;
    static const KernelEnvironment first = wanted;
    if (C10_LIKELY(!have_changed.load(std::memory_order_relaxed)) &&
        (have_modes_changed.load(std::memory_order_relaxed) ||
         wanted.settings_ != first.settings_ || currentSettings() != first.settings_)) {
      have_changed.store(true, std::memory_order_relaxed);
    }
    return have_changed.load(std::memory_order_relaxed);
  }

  const CpuKernelScope scope_;
  KernelEnvironment current_;
  bool has_team_ = false;
};

KernelEnvironment KernelEnvironment::current() {
  takeEnvironmentOfBackward();
  KernelEnvironment environment;
  environment.settings_ = currentSettings();
  environment.num_threads_ = at::get_num_threads();
  environment.float_mode_ = callersFloatMode();
  environment.is_grad_enabled_ = c10::GradMode::is_enabled();
  return environment;
}

HostKernelScope::HostKernelScope() {
  takeEnvironmentOfBackward();
  const uint16_t mode = callersFloatMode();
  if (C10_LIKELY(!have_modes_changed.load(std::memory_order_relaxed))) {
    return;
  }
  team_size_ = at::get_num_threads();
  runOnTeamOfThisThread(team_size_, [mode] { enterMode(mode); });
}

HostKernelScope::~HostKernelScope() {
  if (C10_UNLIKELY(team_size_ > 0)) {
    runOnTeamOfThisThread(team_size_, &leaveMode);
  }
}

void KernelEnvironment::noteLaunched() {
  LaunchingThread& thread = this_launching_thread;
  if (C10_UNLIKELY(--thread.launches_until_look <= 0)) {
    thread.look();
  }
}

void KernelEnvironment::enter() const { Worker::ofThisThread().enter(*this); }

}  // namespace at::openreg
