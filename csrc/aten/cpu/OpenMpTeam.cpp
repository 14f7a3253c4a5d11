#include "csrc/aten/cpu/OpenMpTeam.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <exception>

#include "csrc/core/Mutex.h"

namespace at::openreg {
namespace {

// The call that the threads of a team make. Exceptions must not leave a parallel region.
class TeamCall {
 public:
  explicit TeamCall(c10::function_ref<void()> function) : function_(function) {}

  static void run(void* call) { static_cast<TeamCall*>(call)->runOnThisThread(); }

  // Call after the parallel region.
  void rethrow() {
    const c10::openreg::Lock lock(mutex_);
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

 private:
  void runOnThisThread() {
    try {
      function_();
    } catch (...) {
      const c10::openreg::Lock lock(mutex_);
      error_ = std::current_exception();
    }
  }

  const c10::function_ref<void()> function_;
  c10::openreg::Mutex mutex_;
  std::exception_ptr error_ OPENREG_GUARDED_BY(mutex_);
};

// Functions of the libraries that torch computes with; null if a library is not loaded.
class ThreadLibraries {
 public:
  static const ThreadLibraries& get() {
    static const ThreadLibraries libraries;
    return libraries;
  }

  void setThreadCount(int count) const {
    if (set_open_mp_ != nullptr) {
      set_open_mp_(count);
    }
    if (set_mkl_ != nullptr) {
      // If a thread sets a number, even the default, MKL also starts threads within a parallel
      // region.
      set_mkl_(count == mkl_default_ ? 0 : count);
    }
  }

  void runOnTeam(int count, TeamCall& call) const {
    if (run_parallel_ != nullptr) {
      run_parallel_(&TeamCall::run, &call, static_cast<unsigned>(count), /*flags=*/0);
    } else {
      TeamCall::run(&call);
    }
  }

  void releaseTeam() const {
    if (pause_ != nullptr) {
      pause_(kSoftPause, initial_device_);
    }
  }

 private:
  using Setter = void (*)(int);
  using CountingSetter = int (*)(int);  // returns the number before; 0 is none of its own
  using Counter = int (*)();
  using ParallelRegion = void (*)(void (*function)(void*), void*, unsigned count, unsigned flags);
  using Pause = int (*)(int kind, int device);

  static constexpr int kSoftPause = 1;  // omp_pause_soft

  ThreadLibraries() {
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
    // What compilers call for a parallel region; LLVM's and Intel's libraries also export it.
    run_parallel_ = reinterpret_cast<ParallelRegion>(dlsym(library, "GOMP_parallel"));
    // Only LLVM's and Intel's libraries, which have one team per process, export this function.
    const bool is_libgomp = dlsym(library, "__kmpc_fork_call") == nullptr;
    auto* initial_device = reinterpret_cast<Counter>(dlsym(library, "omp_get_initial_device"));
    if (is_libgomp && initial_device != nullptr) {
      pause_ = reinterpret_cast<Pause>(dlsym(library, "omp_pause_resource"));
      initial_device_ = initial_device();
    }
    dlclose(library);
  }

  Setter set_open_mp_ = nullptr;
  CountingSetter set_mkl_ = nullptr;
  int mkl_default_ = 0;  // for threads that have set no number
  ParallelRegion run_parallel_ = nullptr;
  Pause pause_ = nullptr;
  int initial_device_ = 0;
};

}  // namespace

void setThreadCountOfThisThread(int count) { ThreadLibraries::get().setThreadCount(count); }

void runOnTeamOfThisThread(int count, c10::function_ref<void()> function) {
  TeamCall call(function);
  ThreadLibraries::get().runOnTeam(count, call);
  call.rethrow();
}

void releaseTeamOfThisThread() { ThreadLibraries::get().releaseTeam(); }

}  // namespace at::openreg
