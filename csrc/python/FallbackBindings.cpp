#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "build/generated/facts/CpuTensors.h"
#include "build/generated/facts/FakedAsOnCpu.h"
#include "csrc/aten/dtypes/WiderTypes.h"
#include "csrc/aten/fallback/FallbackMode.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "csrc/aten/fallback/PlanStore.h"
#include "csrc/aten/fallback/StreamCall.h"
#include "csrc/python/Bindings.h"

namespace torch_openreg {

namespace {

namespace facts = c10::openreg::facts;

using WidenedDtype = std::tuple<std::string, std::string, std::string>;

template <typename Table>
void addWidened(std::vector<WidenedDtype>& entries, const Table& table, c10::DispatchKey layout) {
  for (const auto& [name, dtypes] : table.entries) {
    for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
      const auto dtype = static_cast<c10::ScalarType>(i);
      if ((dtypes & c10::openreg::setOf(dtype)) != 0) {
        entries.emplace_back(name, c10::toString(layout), c10::toString(dtype));
      }
    }
  }
}

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
  m.def("_fallback_copied_bytes", [] {
    std::map<std::string, int64_t> bytes;
    for (const auto& [name, count] : fallbackStats()) {
      bytes.emplace(name, count.copied_bytes);
    }
    return bytes;
  });
  m.def("_reset_fallback_stats", &resetFallbackStats);
  m.def("_fallback_mode", [] { return fallbackModeName(fallbackMode()); });
  m.def("_set_fallback_mode",
        [](const std::string& mode) { setFallbackMode(parseFallbackMode(mode)); });
  m.def("_copied_result_count", &copiedResultCount);
  m.def("_fallback_memory", [] {
    const PlanCount count = countPlans();
    return std::map<std::string, size_t>{{"plans", count.plans},
                                         {"words", count.words},
                                         {"made", count.made},
                                         {"calls", keptCallCount()}};
  });
  // docs: end
  m.def("_dtypes_to_widen", [] {
    std::vector<WidenedDtype> entries;
    addWidened(entries, facts::kWidened, c10::DispatchKey::Dense);
    addWidened(entries, facts::kWidenedSparse, c10::DispatchKey::Sparse);
    addWidened(entries, facts::kWidenedSparseCsr, c10::DispatchKey::SparseCsr);
    return entries;
  });
  m.def("_operators_faked_as_on_cpu", [] {
    std::vector<std::string> names;
    for (const auto& entry : facts::kFakedAsOnCpu.entries) {
      names.emplace_back(entry.name);
    }
    return names;
  });
  m.def("_cpu_tensors", [] {
    std::map<std::string, std::vector<std::string>> arguments;
    for (const auto& [name, value] : facts::kCpuTensors.entries) {
      for (const std::string_view argument : value.names) {
        if (!argument.empty()) {
          arguments[std::string(name)].emplace_back(argument);
        }
      }
    }
    return arguments;
  });
}

const Bindings kFallbackBindings(&bindFallback);

}  // namespace

}  // namespace torch_openreg
