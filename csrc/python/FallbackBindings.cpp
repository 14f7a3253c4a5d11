#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/aten/dtypes/WiderTypes.h"
#include "csrc/aten/fallback/FallbackMode.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "csrc/aten/fallback/PlanStore.h"
#include "csrc/aten/fallback/StreamCall.h"
#include "csrc/python/Bindings.h"

namespace torch_openreg {

namespace {

void bindFallback(pybind11::module_& m) {
  using namespace at::openreg;
  // docs: bindings-fallback
  m.def(
      "_fallback_stats",
      [](bool synchronous_only) {
        std::map<std::string, int64_t> calls;
        for (const auto& [name, count] : fallbackStats()) {
          const int64_t number = count.synchronous + (synchronous_only ? 0 : count.asynchronous);
          if (number > 0) {
            calls.emplace(name, number);
          }
        }
        return calls;
      },
      pybind11::arg("synchronous_only"));
  m.def("_reset_fallback_stats", &resetFallbackStats);
  m.def("_fallback_mode", [] { return fallbackModeName(fallbackMode()); });
  m.def("_set_fallback_mode",
        [](const std::string& mode) { setFallbackMode(parseFallbackMode(mode)); });
  m.def("_copied_result_count", &copiedResultCount);
  m.def("_fallback_memory", [] {
    const PlanCount count = countPlans();
    return std::map<std::string, size_t>{
        {"plans", count.plans}, {"words", count.words}, {"calls", keptCallCount()}};
  });
  // docs: end
  m.def("_dtypes_to_widen", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> entries;
    for (const auto& entry : at::openreg::detail::kDtypesToWiden) {
      for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
        const auto dtype = static_cast<c10::ScalarType>(i);
        if ((entry.dtypes & at::openreg::setOf(dtype)) != 0) {
          entries.emplace_back(entry.name, c10::toString(entry.layout), c10::toString(dtype));
        }
      }
    }
    return entries;
  });
}

const Bindings kFallbackBindings(&bindFallback);

}  // namespace

}  // namespace torch_openreg
