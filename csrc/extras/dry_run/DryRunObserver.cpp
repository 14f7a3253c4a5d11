#include "csrc/extras/dry_run/DryRunObserver.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "csrc/aten/cpu/DummyLimit.h"
#include "csrc/core/OperatorName.h"
#include "csrc/extras/dry_run/HostWaits.h"
#include "csrc/extras/dry_run/MadeUpMemory.h"
#include "csrc/extras/dry_run/ResultSizes.h"
#include "csrc/extras/dry_run/ZeroFill.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Launch.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {
namespace {

using c10::openreg::kDeviceType;
using c10::openreg::Observer;
using c10::openreg::OpenRegStream;
using c10::openreg::Operand;
using c10::openreg::Progress;
using c10::openreg::Range;
using c10::openreg::RangeAccess;
using c10::openreg::Reuse;
using c10::openreg::Verdict;

// Of the dummies on which a kernel runs to show that it takes its arguments: about a millisecond.
constexpr int64_t kMostElements = int64_t{1} << 20;

constexpr std::string_view kScalar = "aten::_local_scalar_dense";
constexpr std::string_view kEqual = "aten::equal";
constexpr std::string_view kCopy = "aten::copy_";

// Kernels that reject what they read, and zeros first of all.
constexpr std::array<std::string_view, 5> kCheckingData{
    "aten::linalg_", "aten::_linalg_", "aten::cholesky", "aten::multinomial", "aten::_assert_async",
};

// Whether the kernel must not read values that are made up.
bool needsRealValues(std::string_view kernel) {
  return areSizesInData(kernel) ||
         std::any_of(kCheckingData.begin(), kCheckingData.end(),
                     [&](std::string_view begin) { return kernel.starts_with(begin); });
}

// In-place operators that give each element a new value.
constexpr std::array<std::string_view, 11> kFills{
    "aten::copy_",      "aten::fill_",       "aten::zero_",        "aten::normal_",
    "aten::random_",    "aten::uniform_",    "aten::bernoulli_",   "aten::cauchy_",
    "aten::geometric_", "aten::log_normal_", "aten::exponential_",
};

// Whether the operator keeps something of what it writes.
bool keepsOldValues(std::string_view kernel) {
  return c10::openreg::isInPlace(kernel) &&
         std::ranges::find(kFills, c10::openreg::withoutOverload(kernel)) == kFills.end();
}

// Some work, as the decision needs it.
struct Work {
  bool is_skipped = false;
  bool reads_made_up = false;
  bool writes_host = false;
  size_t written_bytes = 0;

  Verdict verdict() const { return is_skipped ? Verdict::Skip : Verdict::Run; }
};

bool hasMemoryHere(const Operand& operand) {
  const c10::TensorImpl& tensor = *operand.tensor;
  return operand.tensor != c10::UndefinedTensorImpl::singleton() &&
         (operand.is_host_memory || tensor.device_type() == kDeviceType) && tensor.has_storage() &&
         tensor.layout() == kStrided;
}

size_t shownBytes(const c10::TensorImpl& tensor) {
  return static_cast<size_t>(tensor.numel()) * tensor.itemsize();
}

// The size of the storage, or of the view if it shows elements several times; none if it has none.
size_t sizeOf(const c10::TensorImpl& tensor) {
  return tensor.numel() == 0 ? 0 : std::max(tensor.storage().nbytes(), shownBytes(tensor));
}

// The last kernel whose operands this thread has reported, for what else is reported of it.
struct LastKernel {
  const char* name = nullptr;
  bool reads_made_up = false;
  bool is_skipped = false;
};
thread_local LastKernel last_kernel{};

// The engine from which the kernel draws that this thread launches next.
struct Draw {
  at::Generator engine;
  OpenRegStream stream;
};
thread_local std::optional<Draw> next_draw{};

// Takes one number from the engine, in stream order.
void drawOne(const Draw& draw) {
  auto* const impl = static_cast<at::CPUGeneratorImpl*>(draw.engine.unsafeGetGeneratorImpl());
  c10::openreg::launchKernel<"number of a dry run">(draw.stream, [kept = draw.engine, impl] {
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    impl->random();
  });
}

class DryRunObserver final : public Observer {
 public:
  DryRunObserver(DryRunOptions options, ReportMadeUpRead report)
      : options_(std::move(options)), report_(report), waits_(options_.timing) {}

  // --- Work

  Verdict kernelAccess(const OpenRegStream& stream, const char* kernel,
                       c10::ArrayRef<Operand> operands, bool /*schema_only*/) override {
    checkAllowed();
    waits_.noteWork(stream);
    Work work;
    for (const Operand& operand : operands) {
      look(kernel, operand, work);
    }
    const std::string_view name = kernel;
    work.is_skipped = work.is_skipped || (work.reads_made_up && needsRealValues(name));
    if (work.reads_made_up && (work.writes_host || name == kScalar || name == kEqual)) {
      made_up_reads_.fetch_add(1, std::memory_order_relaxed);
      report_(kernel);
    }
    for (const Operand& operand : operands) {
      if (hasMemoryHere(operand)) {
        settle(stream, operand, work);
      }
    }
    last_kernel = {kernel, work.reads_made_up, work.is_skipped};
    if (name == kCopy) {
      countCopy(work.verdict(), work.written_bytes);
    }
    return count(work.verdict());
  }

  Verdict rangeAccess(const OpenRegStream& stream, const char* kernel,
                      c10::ArrayRef<Range> ranges) override {
    checkAllowed();
    waits_.noteWork(stream);
    Work work;
    // Of a call on the calling thread, the results are reported one by one, after the operands.
    work.reads_made_up = last_kernel.name == kernel && last_kernel.reads_made_up;
    for (const Range& range : ranges) {
      const bool is_large = range.nbytes > options_.small_bytes;
      work.is_skipped = work.is_skipped || is_large;
      work.reads_made_up = work.reads_made_up || (range.access != RangeAccess::Written &&
                                                  (is_large || made_up_.contains(range.address)));
    }
    for (const Range& range : ranges) {
      if (range.access == RangeAccess::Read || range.nbytes == 0 ||
          range.nbytes > options_.small_bytes) {
        continue;
      }
      if (work.is_skipped) {
        fillWithZeros(stream, range.address, range.nbytes);
      }
      mark(range.address, work.is_skipped || work.reads_made_up,
           /*is_whole=*/range.access == RangeAccess::Written);
    }
    return count(work.verdict());
  }

  Verdict byteCopy(const OpenRegStream& stream, const char* /*kernel*/, const void* to,
                   const void* from, size_t nbytes) override {
    checkAllowed();
    waits_.noteWork(stream);
    const bool is_large = nbytes > options_.small_bytes;
    if (!is_large) {
      mark(to, made_up_.contains(from), /*is_whole=*/true);
    }
    const Verdict verdict = is_large ? Verdict::Skip : Verdict::Run;
    countCopy(verdict, nbytes);
    return count(verdict);
  }

  // A skipped draw changes the state of the generator as well, so that what compares states, such
  // as a check that two ranks have the same, works as ever.
  void numberDraw(const OpenRegStream& stream, c10::GeneratorImpl& engine) override {
    next_draw =
        Draw{at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(&engine)), stream};
  }

  void kernelLaunch(const char* /*kernel*/) override {
    if (C10_UNLIKELY(next_draw.has_value())) {
      const Draw draw = *std::exchange(next_draw, std::nullopt);
      if (last_kernel.is_skipped) {
        drawOne(draw);
      }
    }
  }

  // --- Order

  void eventRecord(const void* event, const OpenRegStream& stream) override {
    waits_.noteRecord(event, stream);
  }
  void eventDeletion(const void* event) noexcept override { waits_.forget(event); }
  void eventSynchronization(const void* event) override { waits_.noteWait(event); }
  void streamSynchronization(const OpenRegStream& stream) override {
    waits_.noteWait(stream.device_index());
  }
  void deviceSynchronization(c10::DeviceIndex device) override { waits_.noteWait(device); }
  void graphReplay(uint64_t /*capture*/, const OpenRegStream& stream) override {
    waits_.noteWork(stream);
  }

  Progress eventQuery(const void* event) override { return waits_.progressOf(event); }
  Progress streamQuery(const OpenRegStream& stream) override { return waits_.progressOf(stream); }

  // --- Memory

  void memoryAllocation(const void* address, size_t /*requested*/, size_t /*size*/,
                        const OpenRegStream& /*stream*/, c10::MempoolId_t /*pool*/) override {
    made_up_.remove(address);
  }

  void memoryDeallocation(const void* address, size_t /*size*/, const OpenRegStream& owner,
                          c10::MempoolId_t /*pool*/) noexcept override {
    made_up_.remove(address);
    waits_.noteFree(address, owner.device_index());
  }

  Reuse memoryReuse(const void* address, c10::ArrayRef<OpenRegStream> used_on) override {
    return waits_.whenToReuse(address, used_on);
  }

  void memoryShortage(c10::DeviceIndex device) override { waits_.noteWait(device); }

  DryRunCounts counts() const {
    constexpr auto kOrder = std::memory_order_relaxed;
    return {run_.load(kOrder), skipped_.load(kOrder), copied_.load(kOrder),
            not_copied_.load(kOrder), made_up_reads_.load(kOrder)};
  }

 private:
  void checkAllowed() const { TORCH_CHECK(options_.refusal.empty(), options_.refusal); }

  Verdict count(Verdict verdict) {
    (verdict == Verdict::Skip ? skipped_ : run_).fetch_add(1, std::memory_order_relaxed);
    return verdict;
  }

  void countCopy(Verdict verdict, size_t nbytes) {
    (verdict == Verdict::Skip ? not_copied_ : copied_).fetch_add(nbytes, std::memory_order_relaxed);
  }

  void look(const char* kernel, const Operand& operand, Work& work) {
    if (!hasMemoryHere(operand)) {
      return;
    }
    const c10::TensorImpl& tensor = *operand.tensor;
    if (operand.is_written) {
      work.written_bytes += shownBytes(tensor);
    }
    // The size of the host's memory is its own matter, except for what is copied of it.
    if (operand.is_host_memory) {
      work.is_skipped = work.is_skipped || shownBytes(tensor) > options_.small_bytes;
      work.writes_host = work.writes_host || operand.is_written;
      return;
    }
    const bool is_large = sizeOf(tensor) > options_.small_bytes;
    work.is_skipped = work.is_skipped || is_large;
    const bool is_made_up =
        is_large || (tensor.numel() > 0 && made_up_.contains(tensor.storage().data()));
    work.reads_made_up =
        work.reads_made_up ||
        (is_made_up && (!operand.is_written || operand.is_updated || keepsOldValues(kernel)));
  }

  // Fills and marks what is written.
  void settle(const OpenRegStream& stream, const Operand& operand, const Work& work) {
    if (!operand.is_written && !operand.is_unknown) {
      return;
    }
    const c10::TensorImpl& tensor = *operand.tensor;
    const size_t size = operand.is_host_memory ? shownBytes(tensor) : sizeOf(tensor);
    if (tensor.numel() == 0) {
      return;
    }
    if (work.is_skipped &&
        size <= (operand.is_host_memory ? kLargeHostBytes : options_.small_bytes)) {
      fillMadeUp(stream, tensor, operand.is_host_memory);
    }
    if (!operand.is_host_memory && size <= options_.small_bytes) {
      mark(tensor.storage().data(), work.is_skipped || work.reads_made_up,
           /*is_whole=*/shownBytes(tensor) >= tensor.storage().nbytes());
    }
  }

  void mark(const void* storage, bool is_made_up, bool is_whole) {
    if (is_made_up) {
      made_up_.add(storage);
    } else if (is_whole) {
      made_up_.remove(storage);
    }
  }

  const DryRunOptions options_;
  const ReportMadeUpRead report_;
  HostWaits waits_;
  MadeUpMemory made_up_;
  std::atomic<uint64_t> run_{0};
  std::atomic<uint64_t> skipped_{0};
  std::atomic<uint64_t> copied_{0};
  std::atomic<uint64_t> not_copied_{0};
  std::atomic<uint64_t> made_up_reads_{0};
};

std::atomic<DryRunObserver*> observer{nullptr};

}  // namespace

void startDryRun(DryRunOptions options, ReportMadeUpRead report) {
  // Leaked, because memory may be freed by static destructors.
  auto* const started = new DryRunObserver(std::move(options), report);
  observer = started;
  limitDummies(kMostElements);
  c10::openreg::addObserver(*started);
}

bool isDryRun() noexcept { return observer.load(std::memory_order_relaxed) != nullptr; }

DryRunCounts dryRunCounts() {
  const DryRunObserver* const started = observer.load();
  return started == nullptr ? DryRunCounts() : started->counts();
}

}  // namespace at::openreg
