// A small extra of tests: launches closures that count how often they were copied and moved. With
// it, test/core/test_launch.py checks what include/torch_openreg/core/Launch.h and
// include/torch_openreg/aten/OpLaunch.h promise about closures.

#include <torch/csrc/utils/pybind.h>
#include <torch_openreg/aten/OpLaunch.h>
#include <torch_openreg/core/Launch.h>

#include <cstddef>
#include <utility>

namespace {

namespace py = pybind11;
using namespace c10::openreg;
using at::openreg::launchOp;
using at::openreg::WorkKernel;
using at::openreg::WrappedKernel;

constexpr size_t kOwned = 1000;

using Counts = std::pair<int, int>;  // copies, moves
Counts seen;                         // by the closure that ran last

// Tells about itself what a closure may tell.
struct Counting {
  Counting() = default;
  Counting(const Counting& other) : counts(other.counts) { ++counts.first; }
  Counting(Counting&& other) noexcept : counts(other.counts) { ++counts.second; }

  void operator()() const { seen = counts; }
  void describe(orActivityRecord* record) const { record->bytes = kOwned; }
  size_t ownedBytes() const { return kOwned; }

  Counts counts;
};

struct Silent {
  void operator()() const {}
};

OpenRegStream stream() { return getCurrentOpenRegStream(); }

template <typename Launch>
Counts countsOf(const Launch& launch) {
  launch();
  stream().synchronize("countsOf");
  return seen;
}

Counts launchMade() {
  return countsOf([] { launchKernel<"counting">(stream(), MadeBy{[] { return Counting(); }}); });
}

Counts launchGivenUp() {
  return countsOf([] { launchKernel<"counting">(stream(), Counting()); });
}

Counts launchKept() {
  return countsOf([] {
    const Counting kept;
    launchKernel<"counting">(stream(), kept);
  });
}

Counts launchMadeOp() {
  return countsOf(
      [] { launchOp<"test::counting">(stream().device(), MadeBy{[] { return Counting(); }}); });
}

Counts launchWork() {
  return countsOf(
      [] { launchOp(stream().device(), WorkKernel{Counting(), WorkDescription::fill(1)}); });
}

// What the descriptor of a closure has: the bytes of a record, and the bytes that it owns; -1 for
// what it lacks.
template <typename Fn>
std::pair<int64_t, int64_t> told(const Fn& closure) {
  const orKernel described = describeKernel<Fn>("described");
  orActivityRecord record{};
  if (described.describe != nullptr) {
    described.describe(&closure, &record);
  }
  return {described.describe == nullptr ? -1 : static_cast<int64_t>(record.bytes),
          described.owned_bytes == nullptr ? -1
                                           : static_cast<int64_t>(described.owned_bytes(&closure))};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("launch_made", &launchMade);
  m.def("launch_given_up", &launchGivenUp);
  m.def("launch_kept", &launchKept);
  m.def("launch_made_op", &launchMadeOp);
  m.def("launch_work", &launchWork);
  m.def("told_by_counting", [] { return told(Counting()); });
  m.def("told_by_silent", [] { return told(Silent()); });
  m.def("told_by_wrapped", [] { return told(WrappedKernel<Counting>{}); });
  m.def("told_by_wrapped_silent", [] { return told(WrappedKernel<Silent>{}); });
}
