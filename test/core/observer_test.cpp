// A small extra: an observer that keeps what is reported and skips the kernels that a test names,
// one that frees memory when it runs short, a handler of faults. With it,
// test/core/test_observer.py checks what include/torch_openreg/core/Observer.h promises.

#include <openreg/fault.h>
#include <sys/mman.h>
#include <torch/csrc/utils/pybind.h>
#include <torch_openreg/core/Functions.h>
#include <torch_openreg/core/Launch.h>
#include <torch_openreg/core/Observer.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

namespace py = pybind11;
using namespace c10::openreg;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

const char* nameOf(const Operand& operand) {
  if (operand.is_written) {
    return operand.is_updated ? "updated" : "written";
  }
  return operand.is_unknown ? "unknown" : "read";
}

// Frees what it keeps when memory runs short, and counts what it is told.
class Keeper final : public Observer {
 public:
  using Failure = std::tuple<int, size_t, size_t, size_t>;  // of memoryExhaustion

  void memoryShortage(c10::DeviceIndex device) override {
    shortages.push_back(device);
    kept.clear();
  }

  void memoryExhaustion(c10::DeviceIndex device, size_t requested, size_t allowed,
                        size_t free) override {
    failures.emplace_back(device, requested, allowed, free);
    if (throws) {
      throw std::runtime_error("the keeper has no room");
    }
  }

  std::vector<at::Tensor> kept;
  std::vector<int> shortages;
  std::vector<Failure> failures;
  bool throws = false;
};

// One that an extra has for these events alone.
Keeper& keeper() {
  static auto* keeper = new Keeper;
  return *keeper;
}

// A page that nothing may access until a fault handler has opened it.
class ClosedPage {
 public:
  ClosedPage()
      : size_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        memory_(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    TORCH_CHECK(memory_ != MAP_FAILED);
    OPENREG_CHECK(orFaultHandlerAdd(&ClosedPage::open, this));
  }
  ~ClosedPage() {
    OPENREG_WARN_IF_FAILED(orFaultHandlerRemove(&ClosedPage::open, this));
    munmap(memory_, size_);
  }

  volatile int& number() { return *static_cast<volatile int*>(memory_); }

 private:
  static int open(void* self, const orFault* fault) {
    const auto& page = *static_cast<ClosedPage*>(self);
    return fault->address == page.memory_ &&
           mprotect(page.memory_, page.size_, PROT_READ | PROT_WRITE) == 0;
  }

  const size_t size_;
  void* const memory_;
};

class Watch final : public Observer {
 public:
  using Access = std::tuple<uintptr_t, size_t, std::string>;  // address, bytes, kind of access
  using Report = std::pair<std::string, std::vector<Access>>;

  void begin(std::set<std::string> skipped) {
    const std::lock_guard<std::mutex> lock(mutex_);
    skipped_ = std::move(skipped);
    reports_.clear();
    frees_.clear();
    addObserver(*this);
  }

  void end() { removeObserver(*this); }

  Verdict kernelAccess(const OpenRegStream& /*stream*/, const char* kernel,
                       c10::ArrayRef<Operand> operands, bool /*schema_only*/) override {
    std::vector<Access> accesses;
    for (const Operand& operand : operands) {
      accesses.emplace_back(reinterpret_cast<uintptr_t>(operand.tensor->data()),
                            operand.tensor->numel() * operand.tensor->itemsize(), nameOf(operand));
    }
    return keep(kernel, std::move(accesses));
  }

  Verdict rangeAccess(const OpenRegStream& /*stream*/, const char* kernel,
                      c10::ArrayRef<Range> ranges) override {
    constexpr const char* kNames[] = {"read", "written", "updated", "unknown"};
    std::vector<Access> accesses;
    for (const Range& range : ranges) {
      accesses.emplace_back(reinterpret_cast<uintptr_t>(range.address), range.nbytes,
                            kNames[static_cast<size_t>(range.access)]);
    }
    return keep(kernel, std::move(accesses));
  }

  Verdict byteCopy(const OpenRegStream& /*stream*/, const char* kernel, const void* to,
                   const void* from, size_t nbytes) override {
    return keep(kernel, {{reinterpret_cast<uintptr_t>(to), nbytes, "written"},
                         {reinterpret_cast<uintptr_t>(from), nbytes, "read"}});
  }

  void memoryDeallocation(const void* address, size_t size, const OpenRegStream& /*owner*/,
                          c10::MempoolId_t /*pool*/) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    frees_.emplace_back(reinterpret_cast<uintptr_t>(address), size);
  }

  std::vector<Report> reports() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return reports_;
  }

  std::vector<std::pair<uintptr_t, size_t>> frees() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return frees_;
  }

 private:
  Verdict keep(const char* kernel, std::vector<Access> accesses) {
    const std::lock_guard<std::mutex> lock(mutex_);
    reports_.emplace_back(kernel, std::move(accesses));
    return skipped_.contains(kernel) ? Verdict::Skip : Verdict::Run;
  }

  std::mutex mutex_;
  std::set<std::string> skipped_;
  std::vector<Report> reports_;
  std::vector<std::pair<uintptr_t, size_t>> frees_;
};

Watch& watch() {
  static auto* watch = new Watch;
  return *watch;
}

std::atomic<int> ran{0};

// Launches a kernel whose arguments are ranges, each an address, a size and a number of
// RangeAccess.
void launchOnRanges(const std::vector<std::tuple<uintptr_t, size_t, int>>& ranges) {
  const OpenRegStream stream = getCurrentOpenRegStream();
  std::vector<Range> reported;
  for (const auto& [address, nbytes, access] : ranges) {
    reported.push_back(
        {reinterpret_cast<const void*>(address), nbytes, static_cast<RangeAccess>(access)});
  }
  const Verdict verdict = observe(&Observer::rangeAccess, stream, "own kernel", reported);
  launchKernel<"own kernel">(stream, [] { ++ran; }, verdict);
}

// Launches a kernel that fails with a record.
void launchFailing(int code, std::string text, std::string location, uintptr_t address) {
  launchKernel<"failing kernel">(
      getCurrentOpenRegStream(),
      [error = KernelError{static_cast<orError_t>(code), std::move(text), std::move(location),
                           address}] { return error; });
}

// Waits, and returns what the exception of a kernel has: its kernel, code, location, address, text.
std::tuple<std::string, int, std::string, uintptr_t, std::string> failure() {
  try {
    getCurrentOpenRegStream().synchronize("failure");
  } catch (const KernelAcceleratorError& error) {
    const KernelError& record = error.kernelError();
    return {error.kernel(), error.get_error_code(), record.location, record.address, record.text};
  }
  return {};
}

// Launches a kernel that touches memory which only a fault handler makes accessible. Returns what
// it has written.
int launchFaulting() {
  ClosedPage page;
  launchKernel<"faulting kernel">(getCurrentOpenRegStream(), [&page] { page.number() = 42; });
  getCurrentOpenRegStream().synchronize("launch_faulting");
  return page.number();
}

std::pair<uintptr_t, size_t> rangeOf(c10::DeviceIndex device) {
  const AddressRange range = addressRange(device);
  return {reinterpret_cast<uintptr_t>(range.begin), range.size};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("begin", [](std::set<std::string> skipped) { watch().begin(std::move(skipped)); });
  m.def("end", [] { watch().end(); });
  m.def("reports", [] { return watch().reports(); });
  m.def("frees", [] { return watch().frees(); });
  m.def("launch_on_ranges", &launchOnRanges, ReleaseGil());
  m.def("launch_failing", &launchFailing, ReleaseGil());
  m.def("failure", &failure, ReleaseGil());
  m.def("ran", [] { return ran.load(); });
  m.def("launch_faulting", &launchFaulting, ReleaseGil());
  m.def("address_range", &rangeOf);

  m.def("keep", [](std::vector<at::Tensor> tensors, bool throws) {
    keeper().kept = std::move(tensors);
    keeper().throws = throws;
    keeper().shortages.clear();
    keeper().failures.clear();
    addObserver(keeper(), ObservedEvents::Shortages);
  });
  m.def("end_keeping", [] {
    removeObserver(keeper());
    keeper().kept.clear();
  });
  m.def("shortages", [] { return keeper().shortages; });
  m.def("failures", [] { return keeper().failures; });
  m.def("is_observed", [] { return isObserved(); });
}
