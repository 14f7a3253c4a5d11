#include <string>

#include "csrc/extras/dry_run/DryRunObserver.h"
#include "csrc/extras/dry_run/HostFills.h"
#include "csrc/extras/dry_run/ResultSizes.h"
#include "csrc/extras/dry_run/ZeroFill.h"
#include "csrc/extras/dry_run/python/ProgramPlaces.h"
#include "csrc/python/Bindings.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using namespace at::openreg;

// Leaked: values are read while the interpreter ends.
ProgramPlaces& madeUpReads() {
  static auto* const places = new ProgramPlaces;
  return *places;
}

ProgramPlaces& guessedSizes() {
  static auto* const places = new ProgramPlaces;
  return *places;
}

void noteMadeUpRead(const char* kernel) {
  madeUpReads().note(kernel,
                     " gives the host a made-up value: the program may do something else with the "
                     "real one");
}

void noteGuess(const char* kernel) {
  guessedSizes().note(kernel, " has results whose sizes depend on data, and are guessed");
}

void start(bool is_late, const std::string& sizes, const std::string& refusal,
           const py::tuple& foreign_files, size_t small_bytes, bool makes_up_ones) {
  if (makes_up_ones) {
    makeUpOnes();
  }
  setForeignFiles(foreign_files);
  startDescribing(sizes == "error"  ? GuessedSizes::Error
                  : sizes == "none" ? GuessedSizes::None
                                    : GuessedSizes::Worst,
                  &noteGuess);
  startDryRun({is_late ? DryRunTiming::Late : DryRunTiming::Early, small_bytes, refusal},
              &noteMadeUpRead);
  startSkippingHostFills();
}

py::dict counts() {
  const DryRunCounts counts = dryRunCounts();
  py::dict result;
  result["launches_run"] = counts.launches_run;
  result["launches_skipped"] = counts.launches_skipped;
  result["bytes_copied"] = counts.bytes_copied;
  result["bytes_skipped"] = counts.bytes_skipped;
  result["made_up_reads"] = counts.made_up_reads;
  return result;
}

void bindDryRun(py::module_& m) {
  // docs: bindings-dry-run
  m.def("_dry_run_start", &start, py::arg("is_late"), py::arg("sizes"), py::arg("refusal"),
        py::arg("foreign_files"), py::arg("small_bytes") = DryRunOptions().small_bytes,
        py::arg("makes_up_ones") = false);
  m.def("_dry_run_is_on", &isDryRun);
  m.def("_dry_run_counts", &counts);
  m.def("_dry_run_made_up_reads", [] { return madeUpReads().all(); });
  m.def("_dry_run_guessed_sizes", [] { return guessedSizes().all(); });
  // docs: end
}

const Bindings kDryRunBindings(&bindDryRun);

}  // namespace

}  // namespace torch_openreg
